"""What disruption budgets cost, and how rollouts and evictions behave beside stock."""
