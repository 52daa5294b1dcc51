"""Which EndpointSlices a Service needs, and which writes lead there. Pure."""
