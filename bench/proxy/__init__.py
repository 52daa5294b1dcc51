"""`make bench-proxy`: the real kube-proxy and ours, in turn, in equal namespaces against the same API server."""
