"""`zonewise plan` on the dump of a large cluster."""
