"""Certificate management on a real API server: shared by replicas, rotated under load, never logged."""

import asyncio
import base64
import datetime as dt
import ssl
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any

import pytest
from cryptography import x509
from structlog.testing import capture_logs

from support.kube.admission_server import (
    CONFIG_MAP_RULE,
    HOST,
    LABEL,
    LATE,
    SECRET,
    Json,
    Judge,
    config_map,
    configuration,
    registered,
    site,
    trusted,
)
from support.kube.fault_proxy import FaultProxy
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.clock import utc_now
from zonewise.kube.decide import reflector
from zonewise.kube.server.admission import AdmissionServer, Webhook
from zonewise.kube.server.ca_injector import CaInjector
from zonewise.kube.server.cert_manager import CertManager, SharedAuthorities, install
from zonewise.kube.server.certificates import Authorities, CertificateError, Lifetimes
from zonewise.kube.server.tls import server_context
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import ApiError
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import CONFIG_MAPS, SECRETS, Key, Resource

MINUTE = dt.timedelta(minutes=1)
QUICK = Lifetimes(
    authority=120 * MINUTE,
    authority_renewal=60 * MINUTE,
    settling=10 * MINUTE,
    leaf=40 * MINUTE,
    leaf_renewal=20 * MINUTE,
)
BURST = 60  # more than the 25 idle connections an API server keeps, so that every burst opens some


class Clock:
    def __init__(self, now: dt.datetime) -> None:
        self.now = now

    def __call__(self) -> dt.datetime:
        return self.now


async def stored(client: Client, namespace: str) -> Authorities:
    secret = await client.get(SECRETS, SECRET, namespace)
    return Authorities.from_secret({field: base64.b64decode(text) for field, text in secret.data.items()})


async def served(port: int) -> x509.Certificate:
    """Certificate that a new connection gets."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(HOST, port, ssl=context)
    der: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    writer.close()
    with suppress(ConnectionError, ssl.SSLError):
        await writer.wait_closed()
    return x509.load_der_x509_certificate(der)


def signed_by(port: int, authorities: Authorities, index: int) -> Callable[[], Awaitable[bool]]:
    async def holds() -> bool:
        return (await served(port)).issuer == authorities.members[index].certificate.subject

    return holds


class Load:
    """Bursts of requests through the webhook until cancelled; records every failure."""

    def __init__(self, client: Client, namespace: str, proxy: FaultProxy) -> None:
        self._client = client
        self._namespace = namespace
        self._proxy = proxy
        self.bursts = 0
        self.failures: list[ApiError] = []

    async def run(self) -> None:
        while True:
            await asyncio.gather(*(self._create(index) for index in range(BURST)))
            self.bursts += 1

    async def _create(self, index: int) -> None:
        try:
            await self._client.create(CONFIG_MAPS, config_map(f"x{index}"), self._namespace, dry_run=True)
        except ApiError as error:
            self.failures.append(error)

    async def through_new_connections(self) -> None:
        bursts, accepted = self.bursts, self._proxy.accepted
        await eventually(lambda: self.bursts >= bursts + 2 and self._proxy.accepted > accepted, "the load continues")
        assert not self.failures


def with_canary(namespace: str, url: str, canary_url: str) -> dict[str, Any]:
    """Adds a second webhook for objects labelled `canary`; the first is called for all other objects."""
    canary, no_canary = [{"key": "canary", "operator": operator} for operator in ("Exists", "DoesNotExist")]
    body = configuration(namespace, url, [CONFIG_MAP_RULE], objectSelector={"matchExpressions": [no_canary]})
    second = {"name": "canary.zonewise.dev", "clientConfig": {"url": canary_url}}
    body["webhooks"].append({**body["webhooks"][0], **second, "objectSelector": {"matchExpressions": [canary]}})
    return body


async def canary_passes(client: Client, namespace: str) -> bool:
    with suppress(ApiError):
        await client.create(CONFIG_MAPS, config_map("c", canary="yes"), namespace, dry_run=True)
        return True
    return False


async def test_authority_rotation_under_load_fails_no_call(client: Client, namespace: str) -> None:
    """The clock jumps through two hours, within which every certificate is valid by the API server's clock too."""
    now = utc_now()
    clock = Clock(now - 70 * MINUTE)
    canary_context = server_context()
    async with (
        site(client, namespace, lifetimes=QUICK, clock=clock) as running,
        AdmissionServer(
            [Webhook("canary", Json, Judge(), LATE)], canary_context, running.certificate.accepts, host=HOST, port=0
        ) as canary,
        FaultProxy(running.url("")) as proxy,
    ):
        port = running.server.port
        first = await stored(client, namespace)
        assert len(first.members) == 1

        def jump_to(moment: dt.datetime) -> None:
            clock.now = moment
            running.certificate.wake()

        jump_to(now - 10 * MINUTE)  # a successor is due and is trusted from now on
        await eventually(lambda: number_of_authorities(client, namespace, 2))
        both = await stored(client, namespace)
        assert both.members[0].fingerprint == first.members[0].fingerprint
        install(canary_context, both.members[1].issue([HOST], now, MINUTE * 5))
        body = with_canary(namespace, running.url("judge", proxy.port), f"https://{HOST}:{canary.port}/canary")
        async with registered(client, body):
            await trusted(client, namespace, running)
            load = Load(client, namespace, proxy)
            loading = asyncio.create_task(load.run())
            assert await signed_by(port, both, 0)()
            await load.through_new_connections()
            await eventually(lambda: canary_passes(client, namespace), "API server trusts the successor")

            jump_to(now)  # the successor has settled and signs
            await eventually(signed_by(port, both, 1))
            await load.through_new_connections()

            leaf = await served(port)
            jump_to(now + 20 * MINUTE)  # the leaf certificate is due for renewal
            await eventually(lambda: another_leaf(port, leaf))
            await load.through_new_connections()

            jump_to(now + 51 * MINUTE)  # the first authority has expired, a third is created
            await eventually(lambda: successors(client, namespace, both))
            await eventually(lambda: canary_passes(client, namespace))
            await load.through_new_connections()
            loading.cancel()
            await asyncio.wait([loading])
        assert not load.failures


async def number_of_authorities(client: Client, namespace: str, number: int) -> bool:
    return len((await stored(client, namespace)).members) == number


async def another_leaf(port: int, leaf: x509.Certificate) -> bool:
    return (await served(port)).serial_number != leaf.serial_number


async def successors(client: Client, namespace: str, before: Authorities) -> bool:
    members = (await stored(client, namespace)).members
    return len(members) == 2 and members[0].fingerprint == before.members[1].fingerprint


async def test_key_rotation_under_load_fails_no_call(client: Client, namespace: str) -> None:
    """Two replicas; the second reads a new key from the Secret before any configuration carries it."""
    clock = Clock(utc_now())
    async with (
        site(client, namespace, clock=clock) as running,
        site(client, namespace, clock=clock) as other,
        FaultProxy(running.url("")) as proxy,
    ):
        body = configuration(namespace, running.url("judge", proxy.port), [CONFIG_MAP_RULE])
        async with registered(client, body) as resource:
            await trusted(client, namespace, running)
            load = Load(client, namespace, proxy)
            loading = asyncio.create_task(load.run())
            (first,) = (await stored(client, namespace)).keys.members

            async def carried() -> str:
                url: str = (await client.get(resource, body["metadata"]["name"]))["webhooks"][0]["clientConfig"]["url"]
                return url.rpartition("/")[2]

            async def jump(minutes: int, keys: int) -> list[str]:
                clock.now += minutes * MINUTE
                for replica in (running, other):
                    replica.certificate.wake()
                await eventually(lambda: number_of_keys(client, namespace, keys))
                return [key.text for key in (await stored(client, namespace)).keys.members]

            assert await carried() == first.text
            old, new = await jump(61, 2)  # a successor is accepted, and not published yet
            assert old == first.text == await carried()
            await eventually(lambda: running.certificate.accepts(new) and other.certificate.accepts(new))
            await load.through_new_connections()
            await jump(5, 2)  # it is published, and the old one still accepted
            await eventually(lambda: has_key(carried, new))
            assert running.certificate.accepts(old)
            await load.through_new_connections()
            assert await jump(5, 1) == [new]
            await eventually(lambda: not running.certificate.accepts(old) and not other.certificate.accepts(old))
            await load.through_new_connections()
            loading.cancel()
            await asyncio.wait([loading])
        assert not load.failures


async def number_of_keys(client: Client, namespace: str, number: int) -> bool:
    return len((await stored(client, namespace)).keys.members) == number


async def has_key(carried: Callable[[], Awaitable[str]], key: str) -> bool:
    return await carried() == key


def shared(client: Client, namespace: str, lifetimes: Lifetimes = QUICK) -> SharedAuthorities:
    return SharedAuthorities(client, Key(namespace, SECRET), lifetimes)


def fingerprints(authorities: Authorities) -> list[str]:
    return [member.fingerprint for member in authorities.members]


async def test_replicas_started_together_share_one_authority(client: Client, namespace: str) -> None:
    now = utc_now()
    replicas = [shared(client, namespace) for _ in range(5)]
    authorities = await asyncio.gather(*(replica.current(now) for replica in replicas))
    assert {tuple(fingerprints(first)) for first in authorities} == {
        tuple(fingerprints(await stored(client, namespace)))
    }
    assert len(authorities[0].members) == 1


async def test_replicas_renewing_together_create_one_successor(client: Client, namespace: str) -> None:
    now = utc_now()
    replicas = [shared(client, namespace) for _ in range(5)]
    await replicas[0].current(now)
    later = now + 61 * MINUTE
    authorities = await asyncio.gather(*(replica.current(later) for replica in replicas))
    assert {tuple(fingerprints(first)) for first in authorities} == {
        tuple(fingerprints(await stored(client, namespace)))
    }
    assert len(authorities[0].members) == 2


async def test_two_replicas_serve_with_one_ca_bundle(client: Client, namespace: str) -> None:
    async with site(client, namespace) as first, site(client, namespace) as second:
        for running in (first, second):
            async with registered(client, configuration(namespace, running.url("judge"), [CONFIG_MAP_RULE])):
                await trusted(client, namespace, running)
        assert (await served(first.server.port)).public_key() != (await served(second.server.port)).public_key()
        assert len((await stored(client, namespace)).members) == 1


async def test_deleted_secret_is_restored_unchanged(client: Client, namespace: str) -> None:
    replica = shared(client, namespace)
    before = await replica.current(utc_now())
    await client.delete(SECRETS, SECRET, namespace)
    assert fingerprints(await replica.current(utc_now())) == fingerprints(before)
    assert fingerprints(await stored(client, namespace)) == fingerprints(before)


async def test_empty_secret_is_filled_and_other_fields_kept(client: Client, namespace: str) -> None:
    prepared = {"metadata": {"name": SECRET, "labels": {"theirs": "kept"}}, "data": {"note": "aGk="}}
    await client.create(SECRETS, prepared, namespace)
    assert len((await shared(client, namespace).current(utc_now())).members) == 1
    secret = await client.get(SECRETS, SECRET, namespace)
    assert secret.metadata.labels == {"theirs": "kept"}
    assert set(secret.data) == {"note", "ca.crt", "ca.key", "caller-keys"}


BROKEN = {"not base64 of PEM": "bm9uc2Vuc2U=", "cut short": "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURS0tLS0t"}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN)
async def test_broken_secret_error_tells_what_to_do(client: Client, namespace: str, text: str) -> None:
    await client.create(SECRETS, {"metadata": {"name": SECRET}, "data": {"ca.crt": text}}, namespace)
    with pytest.raises(CertificateError, match=f"secret {namespace}/{SECRET}: .*; delete it to have it recreated"):
        await shared(client, namespace).current(utc_now())


async def set_keys(client: Client, namespace: str, stored: bytes) -> None:
    patch = MergePatch({"data": {"caller-keys": base64.b64encode(stored).decode()}})
    await client.patch(SECRETS, SECRET, patch, namespace)


@pytest.mark.parametrize("torn", [b"", b"v1\nabc", b"\xff"], ids=["empty", "cut", "no text"])
async def test_torn_caller_keys_are_replaced_at_the_start(client: Client, namespace: str, torn: bytes) -> None:
    before = await shared(client, namespace).current(utc_now())
    await set_keys(client, namespace, torn)
    started = await shared(client, namespace).current(utc_now())
    assert fingerprints(started) == fingerprints(before)
    assert len(started.keys.members) == 1
    assert started.keys != before.keys
    assert (await stored(client, namespace)).keys == started.keys


async def test_torn_caller_keys_are_restored_by_a_replica_that_knows_them(client: Client, namespace: str) -> None:
    replica = shared(client, namespace)
    before = await replica.current(utc_now())
    await set_keys(client, namespace, b"v1\nabc")
    assert (await replica.current(utc_now(), before.keys.members[0].text)).keys == before.keys
    assert (await stored(client, namespace)).keys == before.keys


async def test_caller_keys_of_a_newer_release_are_refused_and_left(client: Client, namespace: str) -> None:
    await shared(client, namespace).current(utc_now())
    await set_keys(client, namespace, b"v2\nwhatever")
    before = await client.get(SECRETS, SECRET, namespace)
    with pytest.raises(
        CertificateError, match=f"secret {namespace}/{SECRET}: .*run the release that wrote it"
    ) as caught:
        await shared(client, namespace).current(utc_now())
    assert "delete" not in str(caught.value)
    assert await client.get(SECRETS, SECRET, namespace) == before


def grant(namespace: str, user: str) -> tuple[dict[str, Any], dict[str, Any]]:
    name = f"test-{namespace}"
    rules = [
        {"apiGroups": ["admissionregistration.k8s.io"], "resources": ["*"], "verbs": ["get", "list", "watch", "patch"]},
        {"apiGroups": [""], "resources": ["secrets"], "verbs": ["get", "create", "patch"]},
    ]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}
    return (
        {"metadata": {"name": name}, "rules": rules},
        {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]},
    )


RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES = Resource(dict[str, Any], "ClusterRole", "clusterroles", RBAC, namespaced=False)
CLUSTER_ROLE_BINDINGS = Resource(dict[str, Any], "ClusterRoleBinding", "clusterrolebindings", RBAC, namespaced=False)


@pytest.fixture
def lines() -> Iterator[list[Any]]:
    """All log lines before redaction."""
    with capture_logs() as lines:
        yield lines


async def test_forbidden_watch_is_retried_and_no_secret_is_logged(
    cluster: ControlPlane, client: Client, namespace: str, lines: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reflector, "LONGEST_WAIT_SECONDS", 1.0)
    role, binding = grant(namespace, f"webhook-{namespace}")
    path = await asyncio.to_thread(cluster.add_user, f"webhook-{namespace}", f"webhook-{namespace}")
    body = configuration(namespace, "https://127.0.0.1:1/judge", [CONFIG_MAP_RULE], failurePolicy="Ignore")
    async with (
        registered(client, body) as resource,
        Client(kubeconfig.load(path)) as limited,
        Caches(limited) as caches,
    ):
        injector = CaInjector(limited, caches, selector=f"{LABEL}={namespace}")
        certificate = CertManager(limited, Key(namespace, SECRET), [HOST], injector.inject)
        running = asyncio.create_task(certificate.run())
        await eventually(lambda: any("forbidden" in str(line.get("error")) for line in lines))
        await client.create(CLUSTER_ROLES, role)
        await client.create(CLUSTER_ROLE_BINDINGS, binding)
        await eventually(lambda: has_bundle(client, resource, body["metadata"]["name"]))
        await eventually(lambda: any(line["event"] == "serving certificate renewed" for line in lines))
        running.cancel()
        await asyncio.wait([running])
        await client.delete(CLUSTER_ROLE_BINDINGS, binding["metadata"]["name"])
        await client.delete(CLUSTER_ROLES, role["metadata"]["name"])
    assert "PRIVATE" not in str(lines)
    assert not any(key.text in str(lines) for key in (await stored(client, namespace)).keys.members)
    assert "authorities written" in [line["event"] for line in lines]


async def has_bundle(client: Client, resource: Resource[dict[str, Any]], name: str) -> bool:
    return bool((await client.get(resource, name))["webhooks"][0]["clientConfig"].get("caBundle"))


async def test_leaf_is_renewed_although_ca_injection_fails(client: Client, namespace: str) -> None:
    """Signed by the last trusted authority: a successor that could not be announced must not sign."""
    now = utc_now()
    clock, broken = Clock(now - 70 * MINUTE), False

    async def trust(_bundle: bytes, _keys: Sequence[str]) -> None:
        if broken:
            raise ApiError("injection failed")

    certificate = CertManager(client, Key(namespace, SECRET), [HOST], trust, lifetimes=QUICK, clock=clock)
    await certificate.renew()
    async with AdmissionServer([], certificate.context, certificate.accepts, host=HOST, port=0) as server:
        old = await served(server.port)
        broken, clock.now = True, now - 5 * MINUTE
        with pytest.raises(ApiError, match="injection failed"):
            await certificate.renew()
        both = await stored(client, namespace)
        assert len(both.members) == 2
        assert await another_leaf(server.port, old)
        clock.now = now + 10 * MINUTE
        with pytest.raises(ApiError, match="injection failed"):
            await certificate.renew()
        assert await signed_by(server.port, both, 0)()


async def test_endless_conflicts_on_the_secret_raise(client: Client, namespace: str) -> None:
    class ConflictingClient(Client):
        """Client with a concurrent write between every read and the write that follows."""

        async def get(self, *arguments: Any, **options: Any) -> Any:
            secret = await client.get(*arguments, **options)
            await client.patch(
                SECRETS,
                SECRET,
                MergePatch({"data": {"note": base64.b64encode(secret.metadata.resource_version.encode()).decode()}}),
                namespace,
            )
            return secret

    await client.create(SECRETS, {"metadata": {"name": SECRET}}, namespace)
    conflicting = ConflictingClient(client.access)
    async with conflicting:
        with pytest.raises(CertificateError, match="changes faster than it can be read"):
            await shared(conflicting, namespace).current(utc_now())
