"""The EndpointSlices that a Service needs, and the writes that lead there. Pure."""
