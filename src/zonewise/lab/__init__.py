"""A real Kubernetes control plane with zones on this machine."""
