"""`zonewise explain KIND`: what becomes of a request and why, by the functions that decide it. A module per kind."""

from __future__ import annotations

import click

from zonewise.cli.lazy_group import LazyGroup

KINDS = {
    "dns": ("zonewise.cli.explain_dns:dns", "A name: what a client gets for it, and why."),
    "eviction": ("zonewise.cli.explain_eviction:eviction", "A pod: may it be evicted now, and what would free it."),
    "service": ("zonewise.cli.explain_service:service", "A Service: which endpoints its clients get, and why."),
    "volume": ("zonewise.cli.explain_volume:volume", "A claim: in which pool its volume is, and who can reach it."),
}
"""By what is explained: where its command lives, and its line in the help."""


@click.group(
    cls=LazyGroup,
    members=KINDS,
    epilog="Example: zonewise explain service shop/catalog --from-node worker-7",
)
def explain() -> None:
    """Say what becomes of a request, and why: the answer first, then the rules, the facts, and what would change it.

    Reads the cluster once and changes nothing. The exit code is 0 if there is an answer, 1 if not or if it is no.
    """
