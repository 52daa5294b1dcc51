"""Quantity parsing compared with the API server: the same rejections, and equal values after canonicalisation."""

import random
from typing import Any

from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import BadRequest
from zonewise.objects import Resource
from zonewise.topology.quantity import QuantityError, milli_value

SEED = 20261116
QUANTITIES = 250
QUOTAS: Resource[dict[str, Any]] = Resource(dict[str, Any], "ResourceQuota", "resourcequotas")
SUFFIXES = ["", "", "n", "u", "m", "k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"]
ODD = [
    "+1",
    "01",
    ".5",
    "1.",
    "1e",
    "1K",
    "1mi",
    "1e5m",
    "m",
    ".",
    "+",
    "1 Gi",
    " 1",
    "1_0",
    "0x1",
    "1.2.3",
    "1e-12",
    "5E3",
]


def random_quantity(rng: random.Random) -> str:
    number = str(rng.randrange(10 ** rng.randrange(1, 12)))
    if rng.random() < 0.5:
        number += "." + "".join(rng.choices("0123456789", k=rng.randrange(13)))
    if rng.random() < 0.2:
        return f"{number}{rng.choice('eE')}{rng.choice(['', '+', '-'])}{rng.randrange(13)}"
    return number + rng.choice(SUFFIXES)


async def server_spelling(client: Client, namespace: str, quantity: str) -> str | None:
    """Canonical form of the API server, or None if it rejects the quantity."""
    body = {"metadata": {"name": "q"}, "spec": {"hard": {"cpu": quantity}}}
    try:
        quota = await client.create(QUOTAS, body, namespace, dry_run=True)
    except BadRequest:
        return None
    canonical: str = quota["spec"]["hard"]["cpu"]
    return canonical


def parsed(quantity: str) -> int | None:
    try:
        return milli_value(quantity)
    except QuantityError:
        return None


async def test_quantities_agree_with_the_api_server(client: Client, namespace: str) -> None:
    rng = random.Random(SEED)
    disagreements = []
    for quantity in [*ODD, *(random_quantity(rng) for _ in range(QUANTITIES))]:
        canonical = await server_spelling(client, namespace, quantity)
        if parsed(quantity) != (None if canonical is None else milli_value(canonical)):
            disagreements.append((quantity, canonical))
    assert not disagreements
