"""The Kubernetes layer against the official client, lightkube and kr8s."""
