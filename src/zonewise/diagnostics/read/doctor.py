"""Reads from a cluster, once, what the doctor looks at. It changes nothing: what it creates are questions (access reviews)."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from zonewise.api.names import SYSTEM_NAMESPACE
from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot
from zonewise.diagnostics.read import status
from zonewise.install.decide.rights import Right, rights_of_programs, rights_to_install
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, Forbidden, NotFound
from zonewise.objects import CONFIG_MAPS, LEASES, Resource, key_of
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS, RegisteredWebhook
from zonewise.objects.apps import DAEMON_SETS
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS

T = TypeVar("T")

_SYSTEM: Final = "kube-system"
_ONE_LOOK_SECONDS: Final = 5.0
_AT_ONCE: Final = 8
_AWAY: Final = frozenset({500, 502, 503, 504})


async def examine(client: Client, *, before_install: bool = False) -> DoctorFacts:
    seen = await status.read(client, traffic=False)
    installed = bool(seen.deployments or seen.daemon_sets or seen.webhooks)
    ahead, user = await _review_self(client)
    allowed = await _allowed(client, rights_to_install(SYSTEM_NAMESPACE)) if before_install or not installed else {}
    daemon_sets, leases, webhooks = await asyncio.gather(
        _list(client, DAEMON_SETS, _SYSTEM),
        _list(client, LEASES, "kube-node-lease"),
        _list(client, MUTATING_WEBHOOK_CONFIGURATIONS),
    )
    kube_proxy, cilium = await asyncio.gather(_config(client, "kube-proxy"), _config(client, "cilium-config"))
    return DoctorFacts(
        seen=seen,
        ahead_seconds=ahead,
        user=user,
        daemon_sets=daemon_sets,
        node_leases=leases,
        other_webhooks=webhooks,
        kube_proxy_config=kube_proxy.get("config.conf", "") if kube_proxy is not None else None,
        cilium_config=cilium,
        reached=await _reached(client, seen) if not before_install else {},
        allowed=allowed,
        running=await _running(client, seen) if not before_install else {},
        budgets_known=await _knows_budgets(client),
    )


async def _list(client: Client, resource: Resource[T], namespace: str = "") -> list[T]:
    """None of what may not be read."""
    try:
        return (await client.list(resource, namespace)).items
    except (Forbidden, NotFound):
        return []


async def _config(client: Client, name: str) -> Mapping[str, str] | None:
    try:
        return (await client.get(CONFIG_MAPS, name, _SYSTEM)).data
    except (Forbidden, NotFound):
        return None


async def _knows_budgets(client: Client) -> bool | None:
    try:
        await client.list(TOPOLOGY_DISRUPTION_BUDGETS, page_size=1)
    except NotFound:
        return False
    except Forbidden:
        return None
    return True


async def _ask(client: Client, group: str, kind: str, plural: str, spec: Mapping[str, Any]) -> dict[str, Any] | None:
    """The answer to a review; None where one may not even ask."""
    body = {"apiVersion": f"{group}/v1", "kind": kind} | ({"spec": spec} if spec else {})
    try:
        answer = await client.request("POST", f"/apis/{group}/v1/{plural}", body=msgspec.json.encode(body))
    except (Forbidden, NotFound):
        return None
    return msgspec.json.decode(answer, type=dict[str, Any])


async def _review_self(client: Client) -> tuple[float | None, str]:
    """How far our clock is ahead of the server's, which writes when it was asked, and who we are to it."""
    asked_at = datetime.now(UTC)
    answer = await _ask(client, "authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", {})
    if answer is None:
        return None, ""
    written = answer.get("metadata", {}).get("creationTimestamp")
    user = answer.get("status", {}).get("userInfo", {}).get("username", "")
    middle = asked_at + (datetime.now(UTC) - asked_at) / 2
    # It writes whole seconds: half of one is added, so that the error is at most that.
    ahead = (middle - datetime.fromisoformat(written)).total_seconds() - 0.5 if written else None
    return ahead, user


def _attributes(right: Right) -> dict[str, str]:
    resource, _, subresource = right.resource.partition("/")
    said = {"verb": right.verb, "group": right.group, "resource": resource, "namespace": right.namespace}
    return said | {key: value for key, value in (("subresource", subresource), ("name", right.name)) if value}


async def _allowed(client: Client, rights: Iterable[Right]) -> dict[Right, bool]:
    return await _review(client, "SelfSubjectAccessReview", "selfsubjectaccessreviews", {}, rights)


async def _running(client: Client, seen: ClusterSnapshot) -> dict[str, dict[Right, bool]]:
    """What the service accounts of the components that are there may do."""
    found: dict[str, dict[Right, bool]] = {}
    for namespace, name in [*map(key_of, seen.deployments), *map(key_of, seen.daemon_sets)]:
        whose = {
            "user": f"system:serviceaccount:{namespace}:{name}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
        }
        wanted = sorted(rights_of_programs(namespace).get(name, ()))
        if rights := await _review(client, "SubjectAccessReview", "subjectaccessreviews", whose, wanted):
            found[name] = rights
    return found


async def _review(
    client: Client, kind: str, plural: str, whose: Mapping[str, Any], rights: Iterable[Right]
) -> dict[Right, bool]:
    """Some at once: there are dozens. Those that may not be asked about are left out."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def one(right: Right) -> tuple[Right, bool | None]:
        async with turn:
            spec = {**whose, "resourceAttributes": _attributes(right)}
            answer = await _ask(client, "authorization.k8s.io", kind, plural, spec)
        return right, None if answer is None else bool(answer.get("status", {}).get("allowed"))

    answers = await asyncio.gather(*map(one, rights))
    return {right: allowed for right, allowed in answers if allowed is not None}


async def _reached(client: Client, seen: ClusterSnapshot) -> dict[str, str | None]:
    return {
        webhook.name: await (_by_service if webhook.client_config.service else _by_url)(client, webhook)
        for configuration in seen.webhooks
        for webhook in configuration.webhooks
    }


async def _by_service(client: Client, webhook: RegisteredWebhook) -> str | None:
    """Through the API server, as it calls it: any answer but its own complaint comes from the webhook."""
    called = webhook.client_config.service
    assert called is not None, "asked for those that have one"
    path = f"/api/v1/namespaces/{called.namespace}/services/https:{called.name}:{called.port}/proxy/{called.path.lstrip('/')}"
    try:
        await client.request("GET", path, deadline_seconds=_ONE_LOOK_SECONDS)
    except Forbidden:
        return None
    except ApiError as error:
        if error.status in _AWAY or not error.status:
            return " ".join(error.message.split())
    return ""


async def _by_url(_client: Client, webhook: RegisteredWebhook) -> str:
    """From here, with the trust that the API server was given."""
    place = urlsplit(webhook.client_config.url or "")
    try:
        trust = ssl.create_default_context(cadata=base64.b64decode(webhook.client_config.ca_bundle).decode())
        async with asyncio.timeout(_ONE_LOOK_SECONDS):
            _, writer = await asyncio.open_connection(place.hostname, place.port or 443, ssl=trust)
        writer.close()
        await writer.wait_closed()
    except (OSError, ValueError, TimeoutError) as error:  # ssl.SSLError is an OSError
        return f"{place.netloc}: {str(error) or 'no answer'}"
    return ""
