"""Zonewise's DNS server beside CoreDNS: the same answers, and what they cost."""
