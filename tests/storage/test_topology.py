"""Where volumes go, sentence by sentence of the design: each says what becomes of a request, here on a real Ceph."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rbd

from support.ceph import driver as csi_driver
from support.ceph.driver import GIB, MIB, PREFIX, Driver, Refused
from support.waiting import eventually
from zonewise.ceph.backend.cluster import CephCluster
from zonewise.ceph.decide import ids
from zonewise.lab.ceph.cluster import JOURNAL_POOL, LabCeph

ZONES = ["zone-a", "zone-b", "zone-c"]
Name = Callable[[str], str]


def pool_of(cluster: CephCluster, volume: Any) -> str:
    """As Ceph has it: the image must be there."""
    which = ids.parse_volume_id(volume.volume_id)
    assert which is not None
    pool = cluster.pool_name(which.pool_id)
    assert which.image in rbd.RBD().list(cluster.ioctx(pool))
    return str(pool)


def domains(volume: Any) -> list[dict[str, str]]:
    return [dict(each.segments) for each in volume.accessible_topology]


def by_zone(**zones: str) -> dict[str, str]:
    """A class's own pools: by zone, and wider ones as `region_<name>`."""
    listed = [
        {
            "poolName": pool,
            "domainSegments": [
                {"domainLabel": "topology.kubernetes.io/region", "value": where.removeprefix("region_")}
                if where.startswith("region_")
                else {"domainLabel": "topology.kubernetes.io/zone", "value": where.replace("_", "-")}
            ],
        }
        for where, pool in zones.items()
    ]
    return {"topologyConstrainedPools": json.dumps(listed)}


@pytest.mark.parametrize("zone", ZONES)
def test_first_preferred_domain_is_the_one_and_the_only_topology(
    driver: Driver, ceph_admin: CephCluster, name: Name, zone: str
) -> None:
    rest = [other for other in ZONES if other != zone]
    volume = driver.create(name("v"), preferred=[zone, *rest], requisite=ZONES)
    assert pool_of(ceph_admin, volume) == f"rbd-{zone}"
    own, *others = domains(volume)
    assert own == {f"{PREFIX}zone": zone}
    assert others == [
        {f"takeover.ceph.zonewise.dev/zone.{zone}": "active"}
    ]  # no node's, until the domain is taken over
    assert volume.volume_context["pool"] == f"rbd-{zone}"
    assert volume.volume_context["domain"] == f"zone={zone}"
    assert volume.volume_context["reason"] == "PreferredDomain"
    driver.delete(volume.volume_id)


def test_data_lies_in_the_pool_of_the_domain(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    volume = driver.create(name("v"), preferred=["zone-b"], requisite=ZONES)
    which = ids.parse_volume_id(volume.volume_id)
    assert which is not None
    with rbd.Image(ceph_admin.ioctx("rbd-zone-b"), which.image) as image:
        image.write(b"here" * MIB, 0)
        prefix = image.block_name_prefix()
    holding = {
        pool: sum(each.key.startswith(prefix) for each in ceph_admin.ioctx(pool).list_objects())
        for pool in (*(f"rbd-{zone}" for zone in ZONES), JOURNAL_POOL)
    }
    assert holding == {"rbd-zone-a": 0, "rbd-zone-b": 1, "rbd-zone-c": 0, JOURNAL_POOL: 0}
    driver.delete(volume.volume_id)


def test_the_journal_is_in_one_pool_wherever_volumes_are(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    made = [driver.create(name(zone), preferred=[zone], requisite=ZONES) for zone in ZONES]
    journals = {ids.parse_volume_id(volume.volume_id).journal_pool_id for volume in made}  # type: ignore[union-attr]
    assert journals == {ceph_admin.pool_id(JOURNAL_POOL)}
    for volume in made:
        driver.delete(volume.volume_id)


def test_immediate_takes_a_domain_at_random_and_says_it_is_reached_from_everywhere(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    """Without a requirement, as the provisioner sends for Immediate; 24 draws miss one of three zones once in 5000."""
    made = [driver.create(name(str(number)), size=MIB) for number in range(24)]
    assert all(domains(volume) == [] for volume in made)
    assert {volume.volume_context["reason"] for volume in made} == {"AnyDomain"}
    assert {pool_of(ceph_admin, volume) for volume in made} == {f"rbd-{zone}" for zone in ZONES}
    for volume in made:
        driver.delete(volume.volume_id)


def test_immediate_that_the_class_says_wins_over_a_preference(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    """A provisioner that passes topology for Immediate prefers some domain, and means none."""
    asked = {"volumeBindingMode": "Immediate"}
    made = [
        driver.create(name(str(number)), preferred=ZONES, requisite=ZONES, parameters=asked, size=MIB)
        for number in range(10)
    ]
    assert all(domains(volume) == [] for volume in made)
    assert len({pool_of(ceph_admin, volume) for volume in made}) > 1
    for volume in made:
        driver.delete(volume.volume_id)


@pytest.fixture
def even_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two pools the likelier one is chosen; the second of two that are alike."""
    monkeypatch.setattr("random.SystemRandom.random", lambda _self: 0.5)


@pytest.mark.usefixtures("even_draw")
def test_immediate_by_number_of_volumes_evens_pools_out(
    ceph_cluster: LabCeph, csi_config: Path, ceph_admin: CephCluster, tmp_path: Path, name: Name
) -> None:
    """With a journal that no other test has: it is what is counted."""
    two = by_zone(zone_a="rbd-zone-a", zone_b="rbd-zone-b") | {"pool": "rbd-zone-c"}
    asked: dict[str, Any] = {"size": MIB, "parameters": two}
    for fuller, emptier in (("zone-a", "zone-b"), ("zone-b", "zone-a")):
        with csi_driver.serving(tmp_path, csi_config, ceph_cluster) as driver:  # what it counted is kept for a while
            made = [driver.create(name(f"{fuller}{number}"), preferred=[fuller], **asked) for number in range(2)]
            made.append(driver.create(name(f"{fuller}-any"), size=MIB, parameters=two | {"balance": "count"}))
            assert pool_of(ceph_admin, made[-1]) == f"rbd-{emptier}"
            for volume in made:
                driver.delete(volume.volume_id)


@pytest.mark.usefixtures("even_draw")
async def test_immediate_by_free_space(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    """A pool of one copy across all zones has the space of three, whichever is named first."""
    wide = name("wide")
    kind = {"pool_type": "replicated", "rule": "rule-across", "size": 1}
    ceph_admin.mon("osd pool create", pool=wide, pg_num=1, pgp_num=1, **kind)
    ceph_admin.mon("osd pool application enable", pool=wide, app="rbd")
    pools = [by_zone(zone_a="rbd-zone-a", zone_b=wide), by_zone(zone_b=wide, zone_a="rbd-zone-a")]

    def is_known() -> bool:
        return driver.capacity("zone-b", **pools[0]).available_capacity > 4 * GIB

    try:
        await eventually(is_known, "the pool's space is known")
        for number, each in enumerate(pools):
            volume = driver.create(name(str(number)), parameters=each | {"balance": "space"}, size=MIB)
            assert volume.volume_context["pool"] == wide
            driver.delete(volume.volume_id)
    finally:
        ceph_admin.mon("osd pool delete", pool=wide, pool2=wide, yes_i_really_really_mean_it=True)


def test_a_domain_without_a_pool_is_treated_as_immediate_with_an_event(
    ceph_cluster: LabCeph, csi_config: Path, ceph_admin: CephCluster, tmp_path: Path, name: Name
) -> None:
    said: list[tuple[str, str]] = []
    with csi_driver.serving(
        tmp_path, csi_config, ceph_cluster, announce=lambda _parameters, code, note: said.append((code, note))
    ) as driver:
        volume = driver.create(name("v"), preferred=["zone-new"], requisite=["zone-new", *ZONES])
        assert pool_of(ceph_admin, volume) in {f"rbd-{zone}" for zone in ZONES}
        assert domains(volume) == []
        assert volume.volume_context["reason"] == "UnknownDomain"
        ((code, note),) = said
        assert code == "UnknownDomain"
        assert "no pool is for zone=zone-new" in note
        alone = driver.create(name("alone"), preferred=["zone-new"], requisite=["zone-new"])  # strict topology
        assert domains(alone) == []
        for each in (volume, alone):
            driver.delete(each.volume_id)


def test_a_node_without_domains_gets_any(driver: Driver, name: Name) -> None:
    volume = driver.create(name("v"), preferred=[{"unlabelled": "true"}], requisite=[{"unlabelled": "true"}])
    assert domains(volume) == []
    assert volume.volume_context["reason"] == "AnyDomain"
    driver.delete(volume.volume_id)


def test_allowed_topologies_bound_an_immediate_choice(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    """The provisioner passes a class's allowedTopologies as what is required."""
    made = [driver.create(name(str(number)), requisite=["zone-a", "zone-c"], size=MIB) for number in range(6)]
    assert {pool_of(ceph_admin, volume) for volume in made} <= {"rbd-zone-a", "rbd-zone-c"}
    for volume in made:
        driver.delete(volume.volume_id)


def test_a_pool_for_a_region_serves_its_zones_and_a_zones_own_pool_wins(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    """Hierarchical: region, zone, rack, in the order of the domain labels."""
    asked = by_zone(region_west="rbd-zone-c", zone_a="rbd-zone-a")
    rack = [{"region": "west", "zone": "zone-x", "rack": "r1"}]
    wide = driver.create(name("wide"), preferred=rack, requisite=rack, parameters=asked)
    assert pool_of(ceph_admin, wide) == "rbd-zone-c"
    assert domains(wide)[0] == {f"{PREFIX}region": "west"}  # every zone of the region reaches it alike
    zone = [{"region": "west", "zone": "zone-a", "rack": "r7"}]
    own = driver.create(name("own"), preferred=zone, requisite=zone, parameters=asked)
    assert pool_of(ceph_admin, own) == "rbd-zone-a"
    assert domains(own)[0] == {f"{PREFIX}zone": "zone-a"}
    for volume in (wide, own):
        driver.delete(volume.volume_id)


def test_old_spellings_of_labels_mean_todays(driver: Driver, ceph_admin: CephCluster, name: Name) -> None:
    old = [{"poolName": "rbd-zone-c", "domainSegments": [
        {"domainLabel": "failure-domain.beta.kubernetes.io/zone", "value": "elsewhere"}]}]  # fmt: skip
    asked = {"topologyConstrainedPools": json.dumps(old)}
    volume = driver.create(name("v"), preferred=["elsewhere"], requisite=["elsewhere"], parameters=asked)
    assert pool_of(ceph_admin, volume) == "rbd-zone-c"
    driver.delete(volume.volume_id)


def test_a_class_without_domains_uses_its_pool(
    ceph_cluster: LabCeph, ceph_admin: CephCluster, tmp_path: Path, name: Name
) -> None:
    config = csi_driver.config_file(tmp_path, ceph_cluster, rbd={})
    with csi_driver.serving(tmp_path, config, ceph_cluster) as driver:
        volume = driver.create(name("v"), preferred=["zone-b"], requisite=ZONES, parameters={"pool": "rbd-zone-a"})
        assert pool_of(ceph_admin, volume) == "rbd-zone-a"
        assert domains(volume) == []
        with pytest.raises(Refused, match="INVALID_ARGUMENT: parameter pool is missing"):
            driver.create(name("w"), preferred=["zone-b"])
        driver.delete(volume.volume_id)


def test_a_new_domain_is_an_edit_of_the_configuration(
    ceph_cluster: LabCeph, ceph_admin: CephCluster, tmp_path: Path, name: Name
) -> None:
    """The class need not change: pools are read again when the file changes, also when it is replaced."""
    listed = ceph_cluster.pools_by_domain()
    config = csi_driver.config_file(
        tmp_path, ceph_cluster, rbd={"pool": JOURNAL_POOL, "topologyConstrainedPools": listed[:2]}
    )
    with csi_driver.serving(tmp_path, config, ceph_cluster) as driver:
        before = driver.create(name("before"), preferred=["zone-c"], requisite=ZONES)
        assert domains(before) == []
        (tmp_path / "later").mkdir()
        csi_driver.config_file(tmp_path / "later", ceph_cluster).rename(config)
        after = driver.create(name("after"), preferred=["zone-c"], requisite=ZONES)
        assert pool_of(ceph_admin, after) == "rbd-zone-c"
        for volume in (before, after):
            driver.delete(volume.volume_id)


def test_capacity_per_domain(driver: Driver) -> None:
    by_domain = {zone: driver.capacity(zone).available_capacity for zone in ZONES}
    assert all(0 < free <= 4 * GIB for free in by_domain.values())
    everywhere = driver.capacity()
    assert everywhere.available_capacity > max(by_domain.values())
    assert driver.capacity("zone-new").available_capacity > max(by_domain.values())  # treated as any domain
    limited = driver.capacity("zone-a", overcommit="2")
    assert limited.maximum_volume_size.value == pytest.approx(2 * limited.available_capacity, rel=0.01)


def test_more_than_a_pool_may_promise_is_refused_so_that_the_pod_moves_on(driver: Driver, name: Name) -> None:
    asked = {"overcommit": "1"}
    with pytest.raises(Refused, match=r"RESOURCE_EXHAUSTED: no pool of domain zone=zone-a .*rbd-zone-a has") as refused:
        driver.create(name("v"), preferred=["zone-a"], requisite=ZONES, size=50 * GIB, parameters=asked)
    assert refused.value.code == "RESOURCE_EXHAUSTED"
    volume = driver.create(
        name("v"), preferred=["zone-a"], requisite=ZONES, size=50 * GIB, parameters={"overcommit": "0"}
    )
    driver.delete(volume.volume_id)


def test_the_retry_of_a_pod_that_was_scheduled_elsewhere_finds_its_volume(
    driver: Driver, ceph_admin: CephCluster, name: Name
) -> None:
    first = driver.create(name("v"), preferred=["zone-a"], requisite=ZONES)
    again = driver.create(name("v"), preferred=["zone-b"], requisite=ZONES)
    assert again == first
    assert pool_of(ceph_admin, again) == "rbd-zone-a"
    with pytest.raises(Refused, match=r"ALREADY_EXISTS: .*not in the domains that are required"):
        driver.create(name("v"), preferred=["zone-b"], requisite=["zone-b"])
    everywhere = Counter(image for found in csi_driver.images(driver.ceph, ceph_admin).values() for image in found)
    which = ids.parse_volume_id(first.volume_id)
    assert which is not None
    assert everywhere[which.image] == 1
    driver.delete(first.volume_id)
