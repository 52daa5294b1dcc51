"""Ceph access: connections, RBD images, CephFS subvolumes, the manager."""
