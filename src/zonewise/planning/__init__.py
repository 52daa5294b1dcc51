"""What the cluster will do, and what it would do if something were different: a situation, changes to it, its outlook.

`situation` gathers a cluster from a dump or from a live one, `whatif` changes it as asked, `outlook` says for every
Service what comes of it, by the functions that the controllers use. The command `plan` and the dashboard show it.
"""
