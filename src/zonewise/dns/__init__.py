"""DNS server of the cluster: answers depend on the client's node, by the decisions of `zonewise.routing`.

One controller process turns the cluster into records (`decide.zone`) and streams them to worker processes, which only
look them up (`decide.table`).
"""
