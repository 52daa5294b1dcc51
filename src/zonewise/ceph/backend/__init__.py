"""Ceph itself: connections, RBD images, CephFS subvolumes, the manager."""
