"""Simulator: scores of the routing algorithms on millions of inputs, on a user's cluster, and under churn."""
