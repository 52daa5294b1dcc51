"""Facts for `zonewise doctor`, read from a live cluster. It creates only access reviews, which are not stored."""

from __future__ import annotations

import asyncio
import base64
import ssl
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final
from urllib.parse import urlsplit

import msgspec

from zonewise.api.names import SYSTEM_NAMESPACE
from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot
from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.diagnostics.read.status import read_cluster_snapshot
from zonewise.install.decide.right import Right
from zonewise.install.rights import rights_of_programs, rights_to_install
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, Forbidden, NotFound
from zonewise.objects import CONFIG_MAPS, LEASES, key_of
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS, RegisteredWebhook
from zonewise.objects.apps import DAEMON_SETS, DaemonSet, Deployment
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS

_SYSTEM: Final = "kube-system"
_PROBE_SECONDS: Final = 5.0
_MAX_CONCURRENT_REVIEWS: Final = 8
_UNREACHABLE_STATUSES: Final = frozenset({500, 502, 503, 504})


async def read_doctor_facts(reader: ClusterReader, *, before_install: bool = False) -> DoctorFacts:
    client = reader.client
    snapshot = await read_cluster_snapshot(reader, traffic=False)
    installed = bool(snapshot.deployments or snapshot.daemon_sets or snapshot.webhooks)
    ahead_seconds, user = await _review_self(client)
    daemon_sets, node_leases, webhooks, kube_proxy, cilium = await asyncio.gather(
        reader.list_or_empty(DAEMON_SETS, _SYSTEM),
        reader.list_or_empty(LEASES, "kube-node-lease"),
        reader.list_or_empty(MUTATING_WEBHOOK_CONFIGURATIONS),
        reader.get_or_none(CONFIG_MAPS, "kube-proxy", _SYSTEM),
        reader.get_or_none(CONFIG_MAPS, "cilium-config", _SYSTEM),
    )
    return DoctorFacts(
        snapshot=snapshot,
        ahead_seconds=ahead_seconds,
        user=user,
        daemon_sets=daemon_sets,
        node_leases=node_leases,
        other_webhooks=webhooks,
        kube_proxy_config=kube_proxy.data.get("config.conf", "") if kube_proxy else None,
        cilium_config=cilium.data if cilium else None,
        reached={} if before_install else await _probe_webhooks(client, snapshot),
        allowed=await _review_own_rights(client) if before_install or not installed else {},
        running={} if before_install else await _review_components(client, snapshot),
        budgets_known=reader.is_defined(TOPOLOGY_DISRUPTION_BUDGETS),
    )


async def _post_review(
    client: Client, group: str, kind: str, plural: str, spec: Mapping[str, Any]
) -> dict[str, Any] | None:
    """None where the review may not be created, or is not served."""
    body = {"apiVersion": f"{group}/v1", "kind": kind} | ({"spec": spec} if spec else {})
    try:
        reply = await client.request("POST", f"/apis/{group}/v1/{plural}", body=msgspec.json.encode(body))
    except (Forbidden, NotFound):
        return None
    return msgspec.json.decode(reply, type=dict[str, Any])


async def _review_self(client: Client) -> tuple[float | None, str]:
    """How far our clock is ahead of the server's, by the creation time of the review, and our user name."""
    sent_at = datetime.now(UTC)
    review = await _post_review(client, "authentication.k8s.io", "SelfSubjectReview", "selfsubjectreviews", {})
    if review is None:
        return None, ""
    created = review.get("metadata", {}).get("creationTimestamp")
    user = review.get("status", {}).get("userInfo", {}).get("username", "")
    middle = sent_at + (datetime.now(UTC) - sent_at) / 2
    # The server writes whole seconds: adding half of one keeps the error below half a second.
    ahead_seconds = (middle - datetime.fromisoformat(created)).total_seconds() - 0.5 if created else None
    return ahead_seconds, user


def _resource_attributes(right: Right) -> dict[str, str]:
    resource, _, subresource = right.resource.partition("/")
    attributes = {"verb": right.verb, "group": right.group, "resource": resource, "namespace": right.namespace}
    return attributes | {key: value for key, value in (("subresource", subresource), ("name", right.name)) if value}


async def _review_own_rights(client: Client) -> dict[Right, bool]:
    rights = rights_to_install(SYSTEM_NAMESPACE)
    return await _review_rights(client, "SelfSubjectAccessReview", "selfsubjectaccessreviews", {}, rights)


async def _review_components(client: Client, snapshot: ClusterSnapshot) -> dict[str, dict[Right, bool]]:
    """Rights of the service accounts of the components that are installed."""
    by_component: dict[str, dict[Right, bool]] = {}
    workloads: list[Deployment | DaemonSet] = [*snapshot.deployments, *snapshot.daemon_sets]
    for workload in workloads:
        namespace, name = key_of(workload)
        subject = {
            "user": f"system:serviceaccount:{namespace}:{workload.spec.template.spec.service_account_name}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
        }
        needed = sorted(rights_of_programs(namespace).get(name, ()))
        if rights := await _review_rights(client, "SubjectAccessReview", "subjectaccessreviews", subject, needed):
            by_component[name] = rights
    return by_component


async def _review_rights(
    client: Client, kind: str, plural: str, subject: Mapping[str, Any], rights: Iterable[Right]
) -> dict[Right, bool]:
    """Several at once: there are dozens. Rights whose review is forbidden are left out."""
    slots = asyncio.Semaphore(_MAX_CONCURRENT_REVIEWS)

    async def review(right: Right) -> tuple[Right, bool | None]:
        async with slots:
            spec = {**subject, "resourceAttributes": _resource_attributes(right)}
            reply = await _post_review(client, "authorization.k8s.io", kind, plural, spec)
        return right, None if reply is None else bool(reply.get("status", {}).get("allowed"))

    reviews = await asyncio.gather(*map(review, rights))
    return {right: allowed for right, allowed in reviews if allowed is not None}


async def _probe_webhooks(client: Client, snapshot: ClusterSnapshot) -> dict[str, str | None]:
    """By webhook: empty if it is reached, else why not; None if the probe is forbidden."""
    return {
        webhook.name: await (_probe_service if webhook.client_config.service else _probe_url)(client, webhook)
        for configuration in snapshot.webhooks
        for webhook in configuration.webhooks
    }


async def _probe_service(client: Client, webhook: RegisteredWebhook) -> str | None:
    """Through the API server, as it calls the webhook. Any reply but the API server's own error is the webhook's.

    Without the path, whose key would be in the audit log.
    """
    service = webhook.client_config.service
    assert service is not None, "called for webhooks with a Service"
    path = f"/api/v1/namespaces/{service.namespace}/services/https:{service.name}:{service.port}/proxy/"
    try:
        await client.request("GET", path, deadline_seconds=_PROBE_SECONDS)
    except Forbidden:
        return None
    except ApiError as error:
        if error.status in _UNREACHABLE_STATUSES or not error.status:
            return " ".join(error.message.split())
    return ""


async def _probe_url(_client: Client, webhook: RegisteredWebhook) -> str:
    """From this machine, with the CA bundle that the API server uses."""
    url = urlsplit(webhook.client_config.url or "")
    try:
        context = ssl.create_default_context(cadata=base64.b64decode(webhook.client_config.ca_bundle).decode())
        async with asyncio.timeout(_PROBE_SECONDS):
            _, writer = await asyncio.open_connection(url.hostname, url.port or 443, ssl=context)
        writer.close()
        await writer.wait_closed()
    except (OSError, ValueError, TimeoutError) as error:  # ssl.SSLError is an OSError
        return f"{url.netloc}: {str(error) or 'no answer'}"
    return ""
