"""Ceph CSI driver: pools chosen by domain, one journal, RBD images and CephFS subvolumes, takeover of failed domains."""
