"""Network programming latency, as clusterloader2 reads it, beside kube-proxy."""
