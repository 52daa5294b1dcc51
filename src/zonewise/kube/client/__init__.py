"""The API client: kubeconfig, credentials, TLS, transport, rate limits, verbs."""
