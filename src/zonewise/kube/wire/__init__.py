"""Requests, patches, errors and object bytes of the Kubernetes API. Pure."""
