"""The endpoints of each Service port as seen from this node. Pure."""
