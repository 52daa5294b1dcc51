"""Mutation of JSON as a tree: random bytes would hardly ever pass the first check of a reader of objects."""

from __future__ import annotations

import json
from collections.abc import Callable
from random import Random
from typing import Any

SCALARS: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, -(2**63) - 1, 0.5, 1e308, -0.0, "", "0", "-1", "1", "100%", "0%", "101%", "1e9",
    "50 %", "a" * 64, "a" * 300, "é", "\u2028", "\0", "\n", "\r\n", " ", "-", "/", ".", ",", ":", "=", "*", "..", "[]", "{}", "null",
    "\ud800", "zone-a", "a/b", "9" * 400, "1_000", "٣", "NaN", "Infinity", "true",
)  # fmt: skip
Change = Callable[[bytes, int], bytes]


def mutate(data: bytes, max_size: int, chance: Random, words: tuple[str, ...], change: Change) -> bytes:
    """One to four changes. `change` mutates plain bytes, of a string or of the whole."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return change(data, max_size)
    if not words or chance.random() < 0.05:
        return change(data, max_size)
    for _ in range(chance.randint(1, 4)):
        value = _changed(value, chance, words, change)
    text = json.dumps(value, ensure_ascii=chance.random() < 0.5).encode(errors="surrogatepass")
    return text if len(text) <= max_size else data


def flip(data: bytes, max_size: int) -> bytes:
    chance = Random(data)
    made = bytearray(data or b"\0")
    for _ in range(chance.randint(1, 4)):
        made[chance.randrange(len(made))] = chance.randrange(256)
    return bytes(made[: chance.randint(1, max_size)] if chance.random() < 0.1 else made[:max_size])


def _changed(value: Any, chance: Random, words: tuple[str, ...], change: Change) -> Any:
    places = _places(value)
    if not places:
        return _any(chance, words)
    within, at = chance.choice(places)
    match chance.randrange(8):
        case 0 | 1:
            within[at] = _any(chance, words)
        case 2:
            del within[at]
        case 3:
            other, there = chance.choice(places)
            within[at] = json.loads(json.dumps(other[there]))
        case 4:
            within[at] = [within[at]] if chance.random() < 0.5 else {chance.choice(words): within[at]}
        case 5 if isinstance(within, list):
            within.insert(chance.randint(0, len(within)), json.loads(json.dumps(within[at])))
        case 5 | 6 if isinstance(within, dict):
            within[str(_any(chance, words)) if chance.random() < 0.2 else chance.choice(words)] = _any(chance, words)
        case _:
            text = within[at] if isinstance(within[at], str) else json.dumps(within[at])
            within[at] = change(text.encode(errors="replace"), len(text) + 16).decode(errors="replace")
    return value


def _any(chance: Random, words: tuple[str, ...]) -> Any:
    match chance.randrange(4):
        case 0:
            return chance.choice(SCALARS)
        case 1:
            return chance.choice(words)
        case 2:
            return f"{chance.choice(words)}{chance.choice((' ', ',', '/', ':', '.', '%', chr(10), '', '='))}{chance.choice(words)}"
        case _:
            return chance.randint(-3, 120)


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every container with an index or key of it."""
    places: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, dict):
            places += ((one, key) for key in one)
            waiting += one.values()
        elif isinstance(one, list):
            places += ((one, at) for at in range(len(one)))
            waiting += one
    return places
