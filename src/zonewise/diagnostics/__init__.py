"""What people look at: the state of a cluster, what is wrong with it, and what becomes of a Service's traffic.

Gathers what the other rooms decide. `status`, `service` and `checks` are pure, `survey` and `examination` read the
cluster; the command line and the dashboard print what they say.
"""
