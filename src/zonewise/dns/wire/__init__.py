"""DNS messages, records and inter-process messages as bytes. Pure."""
