"""`local-weighted` and `local-opt`: whole endpoints first, then groups of the rest that zones share by weight."""

from __future__ import annotations

import math

from zonewise.routing.algorithms.workspace import Counts, Numbers, Workspace, clear


def keep(zone: int, count: int, zones: int, w: Workspace) -> None:
    w.composition[zone * zones + zone] = count
    w.weight[zone * zones + zone] = 1
    w.sizes[zone] = count


def serve_in_order(zones: int, w: Workspace) -> None:
    """Serves whole needs from whole offers, both in zone order; the rest stays in `needs` and `offers`."""
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


def local_opt(expected: Numbers, endpoints: Counts, w: Workspace) -> int:
    """Endpoints left after whole needs are served form one group for all zones, with equal weights."""
    zones = len(endpoints)
    clear(zones + 1, zones, w)
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
    serve_in_order(zones, w)
    for zone in range(zones):
        w.composition[zones * zones + zone] = w.offers[zone]
        w.weight[zones * zones + zone] = 1 / zones
        w.sizes[zones] += w.offers[zone]
    return zones + 1


def split(expected: Numbers, endpoints: Counts, w: Workspace) -> tuple[int, int]:
    """Splits each zone's difference into whole and fractional needs or offers; returns the fractional counts."""
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


def queue_rest(needs: int, offers: int, zones: int, w: Workspace) -> tuple[int, int]:
    """Appends the remaining whole needs and offers to the fractional ones."""
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


def weigh(offer: int, row: int, first: int, needs: int, zones: int, w: Workspace) -> int:
    """Shares one offer between its own zone and the needs from `first` on; returns the next first need."""
    count = w.offer_count[offer]
    own = w.offer_own[offer]
    rest = 1 - own
    w.composition[row * zones + w.offer_zone[offer]] = count
    w.weight[row * zones + w.offer_zone[offer]] = own
    w.sizes[row] = count
    while first < needs:
        at = row * zones + w.need_zone[first]
        remaining = w.need_amount[first] - count * rest
        if remaining >= 0:
            w.weight[at] += rest
            w.need_amount[first] = remaining
            return first + 1 if remaining == 0 else first
        share = w.need_amount[first] / count
        w.weight[at] += share
        rest -= share
        first += 1
    return first


def local_weighted(expected: Numbers, endpoints: Counts, w: Workspace) -> int:
    """As exact as `expected`: with floats, rounding may lose an endpoint; with fractions it cannot."""
    zones = len(endpoints)
    clear(3 * zones, zones, w)
    needs, offers = split(expected, endpoints, w)
    serve_in_order(zones, w)
    needs, offers = queue_rest(needs, offers, zones, w)
    first = 0
    for offer in range(offers):
        first = weigh(offer, zones + offer, first, needs, zones, w)
    return zones + offers
