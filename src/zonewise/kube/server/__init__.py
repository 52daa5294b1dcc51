"""HTTP servers of our own: admission, health and metrics, and their certificates."""
