"""Benchmark of the CSI controller against librbd and the rbd command, on one real Ceph cluster."""
