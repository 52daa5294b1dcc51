"""The interfaces of CSI drivers: proto files of the specification and of kubelets, and the messages generated from them."""
