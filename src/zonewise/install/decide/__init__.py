"""Components, manifests, object kinds and rights of an installation. Pure."""
