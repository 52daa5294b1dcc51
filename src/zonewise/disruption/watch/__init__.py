"""Watches of what budgets count: pods, nodes, budgets, workloads, scales."""
