"""`zonewise explain KIND`: the outcome of a request and its reasons, with one module per kind."""

from __future__ import annotations

import click

from zonewise.cli.lazy_group import LazyGroup

KINDS = {
    "dns": ("zonewise.cli.explain_dns:dns", "The DNS answer a client gets for a name, and why."),
    "eviction": (
        "zonewise.cli.explain_eviction:eviction",
        "Whether a pod may be evicted now, and what would allow it.",
    ),
    "service": ("zonewise.cli.explain_service:service", "Which endpoints the clients of a Service get, and why."),
    "volume": (
        "zonewise.cli.explain_volume:volume",
        "In which pool the volume of a claim is, and which nodes reach it.",
    ),
}
"""Kind to the location of its command and its help line."""


@click.group(
    cls=LazyGroup,
    members=KINDS,
    epilog="Example: zonewise explain service shop/catalog --from-node worker-7",
)
def explain() -> None:
    """Explain the outcome of a request: the answer first, then the rules, the facts, and what would change it.

    Reads the cluster once and changes nothing. The exit code is 1 if there is no answer, or if the answer is no.
    """
