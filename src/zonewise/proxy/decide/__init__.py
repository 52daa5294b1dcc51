"""Which endpoints each Service port leads to from this node. Pure."""
