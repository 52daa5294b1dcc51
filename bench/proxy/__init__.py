"""`make bench-proxy`: kube-proxy and ours, in turn, in equal namespaces with the same API server."""
