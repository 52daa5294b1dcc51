"""Everything that talks to an API server: client, watch caches, controllers, leases, events, admission."""
