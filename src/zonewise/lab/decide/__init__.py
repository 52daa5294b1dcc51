"""Address plan, pod lifecycle, node and pod status of a lab. Pure."""
