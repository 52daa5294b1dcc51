"""The CSI controller beside bare librbd and the rbd command line, on one real Ceph."""
