"""DNS queries and upstream responses: the invariants and the corpus of `support.dns.packets`."""

from support.dns.packets import check, kept, seeds

SEEDS = [*seeds(), *kept()]
__all__ = ["SEEDS", "check"]
