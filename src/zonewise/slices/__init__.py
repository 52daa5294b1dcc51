"""EndpointSlices: routing decisions brought into the cluster, as its slice controller or on top of the stock one."""
