"""The network of a lab: namespaces, routes, cuts, loss and latency."""
