"""nftables and netlink encoding. Pure."""
