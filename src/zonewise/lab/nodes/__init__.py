"""Nodes of a lab: with kubelet and containerd in network namespaces, and kwok nodes."""
