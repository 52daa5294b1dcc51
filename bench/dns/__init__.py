"""Comparison of Zonewise's DNS server with CoreDNS: answers, CPU, latency and memory."""
