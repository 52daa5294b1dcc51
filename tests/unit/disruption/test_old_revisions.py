"""Old pods of an update by eviction, and grants for a workload's own controller."""

from typing import Any

import msgspec
import pytest

from zonewise.disruption.decide.old_revisions import (
    UpdateError,
    is_complete,
    is_evicting,
    newest_revision,
    of_daemon_set,
    of_stateful_set,
    ranks,
)
from zonewise.disruption.decide.pods import REVISION, PodFacts, ordinal
from zonewise.disruption.decide.scaledown_grants import of_daemon_set as grants_of_daemon_set
from zonewise.disruption.decide.scaledown_grants import of_replica_set, rank
from zonewise.disruption.decide.scaledown_grants import of_stateful_set as grants_of
from zonewise.objects.apps import ControllerRevision, DaemonSet, ReplicaSet, StatefulSet


def stateful_set(replicas: int = 3, annotations: dict[str, str] | None = None, **spec: Any) -> StatefulSet:
    body = {
        "metadata": {
            "name": "db",
            "namespace": "shop",
            "uid": "sts",
            "generation": 2,
            "annotations": annotations or {},
        },
        "spec": {"replicas": replicas, "updateStrategy": {"type": "OnDelete"}, **spec},
        "status": {"observedGeneration": 2, "currentRevision": "old", "updateRevision": "new"},
    }
    return msgspec.convert(body, StatefulSet)


def pods(revisions: str, **of: dict[str, Any]) -> list[PodFacts]:
    """`pods("old new", db_0={"ready": False})`: db-0, db-1."""
    return [
        PodFacts(
            uid=f"uid-{number}",
            name=f"db-{number}",
            **{"ready": True, "node": "n", "labels": {REVISION: revision}, **of.get(f"db_{number}", {})},
        )
        for number, revision in enumerate(revisions.split())
    ]


def names(expected_pods: Any) -> list[str]:
    return [pod.name for pod in expected_pods]


def test_old_pods_have_another_revision_and_stay() -> None:
    update = of_stateful_set(stateful_set(4), pods("old new old old", db_3={"terminating": True}))
    assert names(update.old) == ["db-0", "db-2"]
    assert (update.desired, update.available, update.is_whole) == (4, 3, False)


def test_partition_keeps_lower_ordinals() -> None:
    workload = stateful_set(4, {"zonewise.dev/partition": "2"})
    update = of_stateful_set(workload, pods("old old old new"))
    assert (names(update.old), update.kept) == (["db-2"], 2)
    assert not is_complete(workload, of_stateful_set(workload, pods("old old new new")))


def test_ordinals_may_start_above_zero() -> None:
    workload = stateful_set(2, {"zonewise.dev/partition": "1"}, ordinals={"start": 2})
    assert names(of_stateful_set(workload, pods("old old old old")).old) == ["db-3"]


def test_pods_beyond_the_replicas_are_not_updated() -> None:
    assert names(of_stateful_set(stateful_set(2), pods("old old old")).old) == ["db-0", "db-1"]


def test_invalid_partition_updates_nothing() -> None:
    with pytest.raises(UpdateError, match="StatefulSet shop/db is 'two': write the first ordinal"):
        of_stateful_set(stateful_set(2, {"zonewise.dev/partition": "two"}), pods("old old"))


def test_update_is_complete_once_all_pods_are_new_and_serve() -> None:
    workload = stateful_set(2)
    assert is_complete(workload, of_stateful_set(workload, pods("new new")))
    assert not is_complete(workload, of_stateful_set(workload, pods("new")))
    assert not is_complete(workload, of_stateful_set(workload, pods("new old")))


@pytest.mark.parametrize(
    ("annotations", "strategy", "evicting"),
    [
        ({"zonewise.dev/update": "Evict"}, "OnDelete", True),
        ({"zonewise.dev/update": "Evict"}, "RollingUpdate", False),
        ({"zonewise.dev/update": "evict"}, "OnDelete", False),
        ({}, "OnDelete", False),
    ],
)
def test_only_annotated_workloads_are_updated_by_eviction(
    annotations: dict[str, str], strategy: str, evicting: bool
) -> None:
    assert is_evicting(stateful_set(1, annotations, updateStrategy={"type": strategy})) is evicting


def daemon_set(maximum: int | str | None = None, strategy: str = "RollingUpdate") -> DaemonSet:
    rolling = {"rollingUpdate": {"maxUnavailable": maximum}} if maximum is not None else {}
    body = {
        "metadata": {"uid": "ds"},
        "spec": {"updateStrategy": {"type": strategy, **rolling}},
        "status": {"desiredNumberScheduled": 4},
    }
    return msgspec.convert(body, DaemonSet)


@pytest.mark.parametrize(
    ("workload", "most"),
    [
        (daemon_set(strategy="OnDelete"), None),
        (daemon_set(), 0),
        (daemon_set(3), 2),
        (daemon_set("30%"), 1),
    ],
)
def test_rolling_daemon_set_keeps_its_own_limit(workload: DaemonSet, most: int | None) -> None:
    update = of_daemon_set(workload, pods("old new old new", db_1={"ready": False}), "new")
    assert names(update.old) == ["db-0", "db-2"]
    assert update.most == most


def test_surging_daemon_set_loses_old_pods_with_a_ready_successor() -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "30%", "maxUnavailable": 0}}
    body = {"spec": {"updateStrategy": strategy}, "status": {"desiredNumberScheduled": 3}}
    members = pods(
        "old old old new new",
        **{f"db_{number}": {"node": node} for number, node in enumerate("abca")},
        db_4={"node": "b", "ready": False},
    )
    update = of_daemon_set(msgspec.convert(body, DaemonSet), members, "new")
    assert names(update.old) == ["db-0"]
    assert (update.early, update.most, update.available) == (2, None, 3)


def revision(number: int, name: str, owner: str = "ds") -> ControllerRevision:
    metadata = {"labels": {REVISION: name}, "ownerReferences": [{"uid": owner}]}
    return msgspec.convert({"metadata": metadata, "revision": number}, ControllerRevision)


def test_newest_revision_has_the_highest_number() -> None:
    assert newest_revision(daemon_set(), [revision(3, "a"), revision(2, "b"), revision(9, "c", "other")]) == "a"
    assert not newest_revision(daemon_set(), [])


def test_high_ordinals_first_then_cordoned_nodes() -> None:
    members = pods("old old old old", db_3={"node": "cordoned"})
    order = ranks(members, {"cordoned": True})
    assert names(sorted(members, key=lambda pod: order[pod.uid])) == ["db-2", "db-1", "db-0", "db-3"]


@pytest.mark.parametrize(("name", "number"), [("db-12", 12), ("db", -1), ("db-x", -1), ("a-b-0", 0)])
def test_ordinals(name: str, number: int) -> None:
    assert ordinal(name) == number


ROLLING = {"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"partition": 1}}}


@pytest.mark.parametrize(
    ("workload", "present", "granted", "revoked"),
    [
        pytest.param(stateful_set(3), pods("new new new"), [], [], id="nothing to do"),
        pytest.param(stateful_set(1), pods("new new new"), ["db-2"], [], id="one after the other"),
        pytest.param(
            stateful_set(1, podManagementPolicy="Parallel"), pods("new new new"), ["db-2", "db-1"], [], id="in parallel"
        ),
        pytest.param(
            stateful_set(1),
            pods("new new new", db_2={"terminating": True}),
            [],
            [],
            id="the next when that one is gone",
        ),
        pytest.param(
            stateful_set(1), pods("new new new", db_2={"ready": False}), [], [], id="unready ones need no grant"
        ),
        pytest.param(stateful_set(3), pods("new new new", db_2={"granted": True}), [], ["db-2"], id="scaled up again"),
        pytest.param(stateful_set(3, **ROLLING), pods("old old new"), ["db-1"], [], id="a rolling update"),
        pytest.param(stateful_set(3, **ROLLING), pods("old new new"), [], [], id="keeps its partition"),
        pytest.param(
            stateful_set(3, **ROLLING), pods("old old new", db_2={"ready": False}), [], [], id="waits for the one above"
        ),
        pytest.param(stateful_set(4, **ROLLING), pods("old old old"), [], [], id="waits for one that is missing above"),
        pytest.param(
            stateful_set(3, **ROLLING),
            pods("old old new", db_1={"granted": True}, db_2={"ready": False}),
            [],
            [],
            id="a grant that will be needed stays",
        ),
        pytest.param(stateful_set(3), pods("old old old"), [], [], id="OnDelete deletes nothing"),
    ],
)
def test_grants_of_a_stateful_set(
    workload: StatefulSet, present: list[PodFacts], granted: list[str], revoked: list[str]
) -> None:
    demand = grants_of(workload, present)
    assert (names(demand.pods), names(demand.revoked)) == (granted, revoked)


def test_replica_set_chooses_among_ready_ungranted_pods() -> None:
    workload = msgspec.convert({"spec": {"replicas": 2}}, ReplicaSet)
    members = pods("x x x x x", db_0={"granted": True}, db_1={"ready": False}, db_4={"terminating": True})
    demand = of_replica_set(workload, members, {})
    assert (names(demand.pods), demand.most, demand.waiting) == (["db-2", "db-3"], 0, 1)


def test_pods_with_a_foreign_deletion_cost_come_last() -> None:
    costly, plain, moving = pods("x x x", db_0={"deletion_cost": -5}, db_2={"node": "cordoned"})
    order = sorted([costly, plain, moving], key=lambda pod: rank(pod, cordoned=pod.node == "cordoned"))
    assert order == [moving, plain, costly]


@pytest.mark.parametrize(
    "template",
    [
        {"nodeSelector": {"disk": "ssd"}},
        {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [{"matchExpressions": [{"key": "disk", "operator": "Exists"}]}]
                    }
                }
            }
        },
    ],
)
def test_daemon_set_leaves_nodes_that_no_longer_match(template: dict[str, Any]) -> None:
    workload = msgspec.convert({"spec": {"template": {"spec": template}}}, DaemonSet)
    members = pods("x x x x", db_0={"node": "ssd"}, db_2={"ready": False}, db_3={"node": "ssd", "granted": True})
    demand = grants_of_daemon_set(workload, members, {"ssd": {"disk": "ssd"}, "n": {}})
    assert (names(demand.pods), names(demand.revoked)) == (["db-1"], ["db-3"])
