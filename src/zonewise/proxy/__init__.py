"""The node proxy: routing decisions in nftables, different on every node as topology asks.

`targets` finds the endpoints, `rules` says what becomes of each address, `fragment` and `ruleset` turn that into
elements and chains, `layout` knows the table, `netlink` and `expressions` its encoding: all pure. `kernel`, `plane`,
`conntrack`, `measuring`, `sources` and `server` act.
"""
