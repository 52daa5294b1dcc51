"""The control plane of a lab: etcd, API server, controllers, certificates."""
