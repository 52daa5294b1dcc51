import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from zonewise.lab import slots
from zonewise.lab.decide import addresses


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Registry with ports that no other test's lab uses."""
    monkeypatch.setattr(slots, "FIRST_PORT", slots.FIRST_PORT + slots.SLOTS * slots.PORTS_PER_SLOT)
    return tmp_path / "slots"


def directories(root: Path, count: int) -> list[Path]:
    created = [root / f"lab-{index}" for index in range(count)]
    for directory in created:
        directory.mkdir()
    return created


def test_concurrent_claims_get_different_slots(tmp_path: Path, registry: Path) -> None:
    labs = directories(tmp_path, 20)
    with ThreadPoolExecutor(10) as threads:
        claimed = list(threads.map(lambda lab: slots.claim(lab, registry), labs))
    assert len(set(claimed)) == 20
    assert set(slots.owners(registry)) == set(labs)


def test_claim_is_kept_until_released(tmp_path: Path, registry: Path) -> None:
    first_lab, second_lab = directories(tmp_path, 2)
    slot = slots.claim(first_lab, registry)
    assert slots.claim(first_lab, registry) == slot
    assert slots.claim(second_lab, registry) != slot
    assert slots.held(first_lab, registry) == slot
    slots.release(first_lab, registry)
    assert slots.held(first_lab, registry) is None
    assert slots.owners(registry) == [second_lab]


def test_claim_of_a_vanished_lab_is_reused(tmp_path: Path, registry: Path) -> None:
    first_lab, second_lab = directories(tmp_path, 2)
    slot = slots.claim(first_lab, registry)
    first_lab.rmdir()
    assert slots.claim(second_lab, registry) == slot


def test_slot_with_a_port_in_use_is_skipped(tmp_path: Path, registry: Path) -> None:
    first_lab, second_lab = directories(tmp_path, 2)
    slot = slots.claim(first_lab, registry)
    slots.release(first_lab, registry)
    with socket.socket() as foreign:
        foreign.bind(("127.0.0.1", slots.port(slot, 1)))
        foreign.listen()
        assert slots.claim(second_lab, registry) != slot


def test_no_free_slot_error_tells_what_to_do(tmp_path: Path, registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "SLOTS", 0)
    (lab,) = directories(tmp_path, 1)
    with pytest.raises(slots.SlotError, match="zonewise lab down"):
        slots.claim(lab, registry)


def test_ports_are_unique_and_below_the_ephemeral_range() -> None:
    ports = [slots.port(slot, index) for slot in range(slots.SLOTS) for index in range(slots.PORTS_PER_SLOT)]
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32768
    with pytest.raises(ValueError, match="no port"):
        slots.port(slots.SLOTS, 0)


def test_every_slot_has_addresses() -> None:
    assert slots.SLOTS == addresses.SLOTS
