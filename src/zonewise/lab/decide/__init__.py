"""Decisions of a lab: its address plan, requirements, node labels, configuration files and images. Pure."""
