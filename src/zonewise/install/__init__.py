"""Install and uninstall: manifests, applied, compared and removed."""
