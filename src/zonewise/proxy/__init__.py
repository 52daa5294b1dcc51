"""The node proxy: topology-aware Service routing in nftables, decided for each node.

`decide` (pure): `targets` selects the endpoints of a port, `rules` what happens to each of its addresses.
`wire` (pure): `elements` and `ruleset` turn rules into nftables elements and chains, `layout` defines the table,
`netlink` and `expressions` its encoding. `nft_socket`, `applier`, `conntrack`, `connection_stats`, `informers` and
`server` do the I/O.
"""
