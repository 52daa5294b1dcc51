import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zonewise.lab import slots
from zonewise.lab.decide import addresses


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Away from the ports of labs that other tests start meanwhile."""
    monkeypatch.setattr(slots, "FIRST_PORT", slots.FIRST_PORT + slots.SLOTS * slots.PORTS_PER_SLOT)
    return tmp_path / "slots"


def directories(root: Path, count: int) -> list[Path]:
    made = [root / f"lab-{index}" for index in range(count)]
    for directory in made:
        directory.mkdir()
    return made


def test_every_claimer_gets_its_own(tmp_path: Path, registry: Path) -> None:
    labs = directories(tmp_path, 20)
    with ThreadPoolExecutor(10) as threads:
        claimed = list(threads.map(lambda lab: slots.claim(lab, registry), labs))
    assert len(set(claimed)) == 20
    assert set(slots.owners(registry)) == set(labs)


def test_a_claim_is_kept_until_released(tmp_path: Path, registry: Path) -> None:
    one, two = directories(tmp_path, 2)
    first = slots.claim(one, registry)
    assert slots.claim(one, registry) == first
    assert slots.claim(two, registry) != first
    slots.release(one, registry)
    assert slots.owners(registry) == [two]


def test_the_claim_of_a_vanished_lab_is_taken_over(tmp_path: Path, registry: Path) -> None:
    one, two = directories(tmp_path, 2)
    first = slots.claim(one, registry)
    one.rmdir()
    assert slots.claim(two, registry) == first


def test_a_slot_whose_port_is_in_use_is_skipped(tmp_path: Path, registry: Path) -> None:
    one, two = directories(tmp_path, 2)
    first = slots.claim(one, registry)
    slots.release(one, registry)
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", slots.port(first, 1)))
        foreign.listen()
        assert slots.claim(two, registry) != first


def test_a_full_machine_says_what_to_do(tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOTS", 0)
    (lab,) = directories(tmp_path, 1)
    with pytest.raises(slots.SlotError, match="zonewise lab down"):
        slots.claim(lab, registry)


def test_ports_never_meet_and_stay_below_the_ephemeral_range() -> None:
    ports = [slots.port(slot, index) for slot in range(slots.SLOTS) for index in range(slots.PORTS_PER_SLOT)]
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32768
    with pytest.raises(ValueError, match="no port"):
        slots.port(slots.SLOTS, 0)


def test_every_slot_has_addresses() -> None:
    assert slots.SLOTS == addresses.SLOTS
