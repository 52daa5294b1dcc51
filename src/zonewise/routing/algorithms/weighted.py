"""`local-weighted` and `local-opt`: whole endpoints first, then groups of the rest that zones share by weight."""

from __future__ import annotations

import math

from zonewise.routing.algorithms.workspace import Counts, Numbers, Workspace, clear


def keep(zone: int, count: int, zones: int, workspace: Workspace) -> None:
    workspace.composition[zone * zones + zone] = count
    workspace.weight[zone * zones + zone] = 1
    workspace.sizes[zone] = count


def serve_in_order(zones: int, workspace: Workspace) -> None:
    """Serves whole needs from whole offers, both in zone order; the rest stays in `needs` and `offers`."""
    giver = 0
    for taker in range(zones):
        while workspace.needs[taker] > 0 and giver < zones:
            count = min(workspace.needs[taker], workspace.offers[giver])
            workspace.composition[taker * zones + giver] += count
            workspace.sizes[taker] += count
            workspace.needs[taker] -= count
            workspace.offers[giver] -= count
            if workspace.offers[giver] == 0:
                giver += 1


def local_opt(expected: Numbers, endpoints: Counts, workspace: Workspace) -> int:
    """Endpoints left after whole needs are served form one group for all zones, with equal weights."""
    zones = len(endpoints)
    clear(zones + 1, zones, workspace)
    for zone in range(zones):
        surplus = endpoints[zone] - expected[zone]
        if surplus > 0:
            workspace.needs[zone] = 0
            workspace.offers[zone] = math.ceil(surplus)
            keep(zone, math.floor(expected[zone]), zones, workspace)
        else:
            workspace.needs[zone] = math.floor(-surplus)
            workspace.offers[zone] = 0
            keep(zone, endpoints[zone], zones, workspace)
    serve_in_order(zones, workspace)
    for zone in range(zones):
        workspace.composition[zones * zones + zone] = workspace.offers[zone]
        workspace.weight[zones * zones + zone] = 1 / zones
        workspace.sizes[zones] += workspace.offers[zone]
    return zones + 1


def split(expected: Numbers, endpoints: Counts, workspace: Workspace) -> tuple[int, int]:
    """Splits each zone's difference into whole and fractional needs or offers; returns the fractional counts."""
    zones = len(endpoints)
    needs = 0
    offers = 0
    for zone in range(zones):
        difference = endpoints[zone] - expected[zone]
        whole = int(difference)
        fraction = difference - whole
        workspace.offers[zone] = max(whole, 0)
        workspace.needs[zone] = max(-whole, 0)
        keep(zone, endpoints[zone] if whole < 0 else math.floor(expected[zone]), zones, workspace)
        if fraction > 0:
            workspace.offer_zone[offers] = zone
            workspace.offer_count[offers] = 1
            workspace.offer_own[offers] = 1 - fraction
            offers += 1
        elif fraction < 0:
            workspace.need_zone[needs] = zone
            workspace.need_amount[needs] = -fraction
            needs += 1
    return needs, offers


def queue_rest(needs: int, offers: int, zones: int, workspace: Workspace) -> tuple[int, int]:
    """Appends the remaining whole needs and offers to the fractional ones."""
    for zone in range(zones):
        if workspace.needs[zone] > 0:
            workspace.need_zone[needs] = zone
            workspace.need_amount[needs] = workspace.needs[zone]
            needs += 1
        if workspace.offers[zone] > 0:
            workspace.offer_zone[offers] = zone
            workspace.offer_count[offers] = workspace.offers[zone]
            workspace.offer_own[offers] = 0
            offers += 1
    return needs, offers


def weigh(offer: int, row: int, first: int, needs: int, zones: int, workspace: Workspace) -> int:
    """Shares one offer between its own zone and the needs from `first` on; returns the next first need."""
    count = workspace.offer_count[offer]
    own = workspace.offer_own[offer]
    rest = 1 - own
    workspace.composition[row * zones + workspace.offer_zone[offer]] = count
    workspace.weight[row * zones + workspace.offer_zone[offer]] = own
    workspace.sizes[row] = count
    while first < needs:
        at = row * zones + workspace.need_zone[first]
        remaining = workspace.need_amount[first] - count * rest
        if remaining >= 0:
            workspace.weight[at] += rest
            workspace.need_amount[first] = remaining
            return first + 1 if remaining == 0 else first
        share = workspace.need_amount[first] / count
        workspace.weight[at] += share
        rest -= share
        first += 1
    return first


def local_weighted(expected: Numbers, endpoints: Counts, workspace: Workspace) -> int:
    """As exact as `expected`: with floats, rounding may lose an endpoint; with fractions it cannot."""
    zones = len(endpoints)
    clear(3 * zones, zones, workspace)
    needs, offers = split(expected, endpoints, workspace)
    serve_in_order(zones, workspace)
    needs, offers = queue_rest(needs, offers, zones, workspace)
    first = 0
    for offer in range(offers):
        first = weigh(offer, zones + offer, first, needs, zones, workspace)
    return zones + offers
