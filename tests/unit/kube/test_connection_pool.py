"""Which connections a server closes: the idle, and of too many the oldest of the address that has most."""

from __future__ import annotations

from zonewise.kube.decide.connection_pool import (
    FIRST_REQUEST_SECONDS,
    IDLE_SECONDS,
    MAX_PROVEN_ADDRESSES,
    ConnectionKey,
    ConnectionPool,
)

FLOOD, API_SERVER = "192.0.2.1", "192.0.2.2"


def key(port: int, address: str = FLOOD) -> ConnectionKey:
    return ConnectionKey(address, port)


def test_silent_connections_expire_before_used_ones() -> None:
    pool = ConnectionPool()
    for port in (1, 2):
        pool.add(key(port), 0.0)
    pool.renew(key(2), 5.0)
    assert pool.expired(FIRST_REQUEST_SECONDS - 0.1) == []
    assert pool.expired(FIRST_REQUEST_SECONDS) == [key(1)]
    assert pool.expired(5.0 + IDLE_SECONDS) == [key(2)]
    assert len(pool) == 0


def test_proven_connections_stay_and_leave_room() -> None:
    pool = ConnectionPool(limit=2)
    for port in range(10):
        assert pool.add(key(port, API_SERVER), 0.0) is None
        pool.prove(key(port, API_SERVER))
    assert pool.expired(1e9) == []


def test_unused_connection_of_a_proven_address_lives_as_long_as_used_ones() -> None:
    pool = ConnectionPool()
    pool.add(key(1, API_SERVER), 0.0)
    pool.prove(key(1, API_SERVER))
    pool.add(key(2, API_SERVER), 0.0)
    assert pool.expired(IDLE_SECONDS - 1) == []
    assert pool.expired(IDLE_SECONDS) == [key(2, API_SERVER)]


def test_flood_closes_its_own_connections() -> None:
    pool = ConnectionPool(limit=8)
    pool.add(key(1, API_SERVER), 0.0)
    closed = [pool.add(key(port), 1.0) for port in range(20)]
    assert closed == [None] * 7 + [key(port) for port in range(13)]


def test_client_at_the_address_of_a_flood_has_the_longest_to_prove_itself() -> None:
    pool = ConnectionPool(limit=8)
    for port in range(20):
        pool.add(key(port), 0.0)
    pool.add(key(100), 1.0)
    assert key(100) not in [pool.add(key(port), 1.0) for port in range(20, 27)]
    pool.prove(key(100))
    assert key(100) not in [pool.add(key(port), 1.0) for port in range(30, 60)]


def test_used_connections_outlive_silent_ones_of_the_same_address() -> None:
    pool = ConnectionPool(limit=2)
    pool.add(key(1), 0.0)
    pool.add(key(2), 0.0)
    pool.renew(key(1), 1.0)
    assert pool.add(key(3), 2.0) == key(2)


def test_one_connection_each_of_many_addresses_closes_the_oldest() -> None:
    pool = ConnectionPool(limit=3)
    assert [pool.add(key(1, f"192.0.2.{index}"), 0.0) for index in range(4)][3] == key(1, "192.0.2.0")


def test_closed_connections_are_forgotten() -> None:
    pool = ConnectionPool(limit=1)
    for port in range(5):
        assert pool.add(key(port), 0.0) is None
        pool.remove(key(port))
    pool.remove(key(1))
    pool.renew(key(1), 0.0)
    assert len(pool) == 0


def test_proven_addresses_are_bounded() -> None:
    pool = ConnectionPool()
    for index in range(MAX_PROVEN_ADDRESSES + 1):
        pool.prove(key(1, str(index)))
    pool.add(key(1, "0"), 0.0)
    pool.add(key(1, "1"), 0.0)
    assert pool.expired(FIRST_REQUEST_SECONDS) == [key(1, "0")]
