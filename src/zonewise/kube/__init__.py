"""The only room that talks to an API server: client, watch caches, queues, leases, events, admission."""
