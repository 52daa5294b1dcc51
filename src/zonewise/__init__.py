"""Zonewise keeps a Kubernetes cluster's traffic, volumes and disruptions inside the domains its owner chooses."""

__version__ = "0.1.0"
