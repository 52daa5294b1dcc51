"""Ceph CSI driver: pools chosen by domain, one journal, RBD and CephFS volumes, takeover of failed domains."""
