"""Parts of the simulated cluster: budgets, owners, state of the API server and of leaders."""

from collections import Counter
from dataclasses import dataclass, field

from unit.disruption.build import EXISTS, NOT_A, OLD, STATEFUL, budget
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.ledger import Sightings
from zonewise.disruption.decide.pods import Owner, PodFacts
from zonewise.disruption.decide.status import PublishedStatus, Recollection

ZONES = "abc"
ANSWERED_SECONDS = 60.0
"""No API server works on a request for longer."""
BEHIND_SECONDS = 30.0
"""No leader's cache is behind for longer: its lease would be another's."""

BUDGETS = {
    "one per zone": budget(EXISTS, maxUnavailable=1),
    "two per zone": budget(EXISTS, maxUnavailable=2),
    "half of each zone": budget(EXISTS, maxUnavailable="50%"),
    "a zone at a time": budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1),
    "one must stay in each": budget(EXISTS, minAvailable=1),
    "one of all": budget(maxUnavailable=1),
    "one of each but a": budget(NOT_A, EXISTS, maxUnavailable=1),
    "none but of a": budget(NOT_A, EXISTS, maxUnavailable=0),
    "one per zone, and unready ones": budget(EXISTS, maxUnavailable=1, unhealthyPodEvictionPolicy="AlwaysAllow"),
}
OWNERS = {STATEFUL: Owner("StatefulSet", "db", "sts"), OLD: Owner("ReplicaSet", "web-old", "rs-old")}


@dataclass(frozen=True)
class Stored:
    """The budget as the API server has it; every write makes a new version."""

    budget: Budget
    status: PublishedStatus
    version: int = 1


@dataclass
class Flight:
    """A request that a webhook has judged CHARGE on some version."""

    pod: PodFacts
    domain: str
    read: Stored
    committed_at: float | None = None


@dataclass
class Leader:
    """What one leader has in memory."""

    pods: dict[str, PodFacts]
    nodes: dict[str, dict[str, str]]
    desired: int
    looked_at: float
    bound: int
    disrupted: set[str]
    before: Recollection = field(default_factory=Recollection)
    sightings: Sightings = field(default_factory=dict)
    draft: tuple[int, PublishedStatus, set[str]] | None = None


@dataclass(frozen=True)
class Met:
    """The pods of each zone that a leader met when it could know nothing of those before it.

    That is so after an edit that changes what a domain is, or one between two leaders. `nameless` are missing and none
    is seen leaving for them, when so many pods had been `bound`: these count everywhere until they are back. Of the
    rest it is a guess which zone lacks them, by the pods that are seen leaving, and some of those may be replaced already.
    """

    pods: Counter[str]
    nameless: int
    bound: int
