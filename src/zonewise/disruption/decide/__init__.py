"""Counts, verdicts, ledgers and waves of disruption budgets. Pure."""
