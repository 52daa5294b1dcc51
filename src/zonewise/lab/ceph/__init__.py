"""A real Ceph cluster for a lab, and the CSI driver in it."""
