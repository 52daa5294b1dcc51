"""nftables tables, rules and elements as netlink messages. Pure."""
