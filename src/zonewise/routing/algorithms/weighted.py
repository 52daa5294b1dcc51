"""`local-weighted` and `local-opt`: whole endpoints first, then groups of the rest that zones share by weight."""

from __future__ import annotations

import math

from zonewise.routing.algorithms.workspace import Counts, Numbers, Workspace, clear


def serve_in_order(w: Workspace, zones: int) -> None:
    """Whole needs from whole offers, both in zone order; what neither side could settle stays in `needs`, `offers`."""
    giver = 0
    for taker in range(zones):
        while w.needs[taker] > 0 and giver < zones:
            count = min(w.needs[taker], w.offers[giver])
            w.composition[taker * zones + giver] += count
            w.sizes[taker] += count
            w.needs[taker] -= count
            w.offers[giver] -= count
            if w.offers[giver] == 0:
                giver += 1


def keep(zone: int, count: int, zones: int, w: Workspace) -> None:
    w.composition[zone * zones + zone] = count
    w.weight[zone * zones + zone] = 1
    w.sizes[zone] = count


def local_opt(expected: Numbers, endpoints: Counts, w: Workspace) -> int:
    zones = len(endpoints)
    clear(w, zones + 1, zones)
    for zone in range(zones):
        surplus = endpoints[zone] - expected[zone]
        if surplus > 0:
            w.needs[zone] = 0
            w.offers[zone] = math.ceil(surplus)
            keep(zone, math.floor(expected[zone]), zones, w)
        else:
            w.needs[zone] = math.floor(-surplus)
            w.offers[zone] = 0
            keep(zone, endpoints[zone], zones, w)
    serve_in_order(w, zones)
    for zone in range(zones):
        w.composition[zones * zones + zone] = w.offers[zone]
        w.weight[zones * zones + zone] = 1 / zones
        w.sizes[zones] += w.offers[zone]
    return zones + 1


def split(expected: Numbers, endpoints: Counts, w: Workspace) -> tuple[int, int]:
    """Each zone's difference as a whole and a fractional need or offer; the counts of fractional needs and offers."""
    zones = len(endpoints)
    needs = 0
    offers = 0
    for zone in range(zones):
        difference = endpoints[zone] - expected[zone]
        whole = int(difference)
        fraction = difference - whole
        w.offers[zone] = max(whole, 0)
        w.needs[zone] = max(-whole, 0)
        keep(zone, endpoints[zone] if whole < 0 else math.floor(expected[zone]), zones, w)
        if fraction > 0:
            w.offer_zone[offers] = zone
            w.offer_count[offers] = 1
            w.offer_own[offers] = 1 - fraction
            offers += 1
        elif fraction < 0:
            w.need_zone[needs] = zone
            w.need_amount[needs] = -fraction
            needs += 1
    return needs, offers


def queue_rest(needs: int, offers: int, w: Workspace, zones: int) -> tuple[int, int]:
    """What whole needs and offers left over joins the end of the fractional ones."""
    for zone in range(zones):
        if w.needs[zone] > 0:
            w.need_zone[needs] = zone
            w.need_amount[needs] = w.needs[zone]
            needs += 1
        if w.offers[zone] > 0:
            w.offer_zone[offers] = zone
            w.offer_count[offers] = w.offers[zone]
            w.offer_own[offers] = 0
            offers += 1
    return needs, offers


def consume(row: int, zone: int, share: float, zones: int, w: Workspace) -> None:
    """Row g of `order` holds how many consumers group g has, and then who, in the order they came."""
    base = row * (zones + 1)
    if w.weight[row * zones + zone] == 0:
        w.order[base] += 1
        w.order[base + w.order[base]] = zone
    w.weight[row * zones + zone] += share


def weigh(offer: int, first: int, needs: int, row: int, zones: int, w: Workspace) -> int:
    """Shares one offer between its own zone and the needs from `first` on; the need that is first now."""
    own = w.offer_own[offer]
    count = w.offer_count[offer]
    rest = 1 - own
    if own > 0:
        consume(row, w.offer_zone[offer], own, zones, w)
    while first < needs:
        remaining = w.need_amount[first] - count * rest
        if remaining >= 0:
            consume(row, w.need_zone[first], rest, zones, w)
            w.need_amount[first] = remaining
            return first + 1 if remaining == 0 else first
        share = w.need_amount[first] / count
        consume(row, w.need_zone[first], share, zones, w)
        rest -= share
        first += 1
    return first


def same_consumers(row: int, other: int, zones: int, w: Workspace) -> bool:
    for at in range(w.order[row * (zones + 1)] + 1):
        if w.order[row * (zones + 1) + at] != w.order[other * (zones + 1) + at]:
            return False
    return True


def drop(row: int, zones: int, w: Workspace) -> None:
    for zone in range(zones):
        w.composition[row * zones + zone] = 0
        w.weight[row * zones + zone] = 0
    w.sizes[row] = 0


def drop_doubles(row: int, zones: int, w: Workspace) -> None:
    """As published: a group replaces an earlier one with the same consumers, and a zone's own group comes last."""
    for earlier in range(zones, row):
        if w.sizes[earlier] > 0 and same_consumers(row, earlier, zones, w):
            drop(earlier, zones, w)
    if w.order[row * (zones + 1)] == 1 and w.sizes[w.order[row * (zones + 1) + 1]] > 0:
        drop(row, zones, w)


def local_weighted(expected: Numbers, endpoints: Counts, as_published: bool, w: Workspace) -> int:
    """`as_published` keeps one group per list of consumers, which loses endpoints where rounding makes two alike."""
    zones = len(endpoints)
    clear(w, 3 * zones, zones)
    needs, offers = split(expected, endpoints, w)
    serve_in_order(w, zones)
    needs, offers = queue_rest(needs, offers, w, zones)
    first = 0
    for offer in range(offers):
        row = zones + offer
        w.composition[row * zones + w.offer_zone[offer]] = w.offer_count[offer]
        w.sizes[row] = w.offer_count[offer]
        w.order[row * (zones + 1)] = 0
        first = weigh(offer, first, needs, row, zones, w)
        if as_published:
            drop_doubles(row, zones, w)
    return zones + offers
