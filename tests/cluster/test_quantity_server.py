"""Our reading of quantities against the API server's: what it refuses we refuse, what it rewrites means the same to us."""

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


def some_quantity(chance: random.Random) -> str:
    number = str(chance.randrange(10 ** chance.randrange(1, 12)))
    if chance.random() < 0.5:
        number += "." + "".join(chance.choices("0123456789", k=chance.randrange(13)))
    if chance.random() < 0.2:
        return f"{number}{chance.choice('eE')}{chance.choice(['', '+', '-'])}{chance.randrange(13)}"
    return number + chance.choice(SUFFIXES)


async def rewritten(client: Client, namespace: str, quantity: str) -> str | None:
    """The server's own spelling, or None when it is not a quantity to it."""
    body = {"metadata": {"name": "q"}, "spec": {"hard": {"cpu": quantity}}}
    try:
        quota = await client.create(QUOTAS, body, namespace, dry_run=True)
    except BadRequest:
        return None
    spelled: str = quota["spec"]["hard"]["cpu"]
    return spelled


def ours(quantity: str) -> int | None:
    try:
        return milli_value(quantity)
    except QuantityError:
        return None


async def test_the_server_agrees(client: Client, namespace: str) -> None:
    chance = random.Random(SEED)
    disagreements = []
    for quantity in [*ODD, *(some_quantity(chance) for _ in range(QUANTITIES))]:
        spelled = await rewritten(client, namespace, quantity)
        if ours(quantity) != (None if spelled is None else milli_value(spelled)):
            disagreements.append((quantity, spelled))
    assert not disagreements
