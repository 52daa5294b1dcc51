"""Watch caches: informers that run reflectors, and the caches they fill."""
