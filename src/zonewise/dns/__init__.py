"""The DNS server: routing decisions become answers that depend on where the client is.

One watcher process turns the cluster into records (`catalog`) and sends them, ready for the wire, to serving processes
that only look them up (`table`). Nothing here decides who gets which endpoint: `zonewise.routing` does.
"""
