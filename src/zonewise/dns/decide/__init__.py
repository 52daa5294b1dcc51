"""DNS records, answers and client locations. Pure."""
