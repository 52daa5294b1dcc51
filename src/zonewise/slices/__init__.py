"""EndpointSlices with routing decisions: as the slice controller of the cluster, or on top of the stock one."""
