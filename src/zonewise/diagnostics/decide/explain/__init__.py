"""`zonewise explain`: reports on services, names, evictions, volumes and drains. Pure."""
