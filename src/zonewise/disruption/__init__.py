"""Topology disruption budgets: counts and verdicts, the webhooks that enforce them, rollouts and scale-downs within them."""
