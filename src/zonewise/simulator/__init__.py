"""The algorithms of `routing` judged on millions of inputs, on a user's own cluster, and under churn."""
