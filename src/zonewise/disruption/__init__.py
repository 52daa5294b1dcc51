"""Budgets of planned disruptions per domain: who may leave, who guards it, how rollouts and scale-downs keep to it."""
