"""What explain, status and doctor report, from objects that were read. Pure."""
