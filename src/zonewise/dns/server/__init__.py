"""DNS worker processes: supervisor, fork server, UDP and TCP serving, forwarding."""
