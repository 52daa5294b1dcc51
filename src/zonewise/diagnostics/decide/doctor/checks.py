"""The doctor's checks of Zonewise and of Services, and the whole diagnosis. Pure.

`cluster_checks` has the checks of the cluster itself.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from zonewise.api.names import MANAGED_BY, PROXY_NAME, PROXY_NAME_LABEL, ROUTING_STATE, STOCK_MANAGER, WEIGHTS
from zonewise.diagnostics.decide.doctor.cluster_checks import check_cluster, check_data_plane, check_nodes
from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
from zonewise.diagnostics.decide.doctor.findings import (
    CheckGroup,
    Diagnosis,
    Finding,
    FindingLevel,
    counted,
    fine,
    note,
    unknown,
    wrong,
)
from zonewise.diagnostics.decide.names import first_names
from zonewise.diagnostics.decide.status.assemble import WEBHOOK_CONFIGURATIONS, build_status
from zonewise.diagnostics.decide.status.report import ClusterStatus, RoutingStatus, ServiceState
from zonewise.disruption.decide.status import refusal
from zonewise.objects import Key, key_of
from zonewise.objects.discovery import service_key
from zonewise.routing import HintsForm
from zonewise.routing.weights_annotation import weights_problem
from zonewise.slices.decide.service_status import STOCK_DNS_LOSS, state_problem

CERTIFICATE_WARNING: Final = timedelta(days=7)
_MAX_NAMED: Final = 3


def diagnose(
    facts: DoctorFacts, now: datetime, hints: HintsForm = HintsForm.STABLE, *, before_install: bool = False
) -> Diagnosis:
    """`before_install` skips checks that need an installed Zonewise."""
    status = build_status(facts.snapshot, now, hints)
    findings = [*check_cluster(facts, now), *check_nodes(facts), *check_data_plane(facts)]
    if not before_install:
        findings += check_zonewise(facts, status, now)
    findings += check_services(facts, status)
    return Diagnosis(
        at=status.at,
        server=facts.snapshot.server,
        version=facts.snapshot.version,
        installed=status.installed,
        wrong=sum(finding.level is FindingLevel.WRONG for finding in findings),
        notes=sum(finding.level is FindingLevel.NOTE for finding in findings),
        findings=tuple(findings),
    )


def check_zonewise(facts: DoctorFacts, status: ClusterStatus, now: datetime) -> Iterator[Finding]:
    if not status.installed:
        sentence = "Zonewise is not installed"
        yield note(CheckGroup.ZONEWISE, "NotInstalled", sentence, "zonewise install")
        return
    codes = {"ComponentNotReady", "NoLeader", "WebhookDown"}
    problems = [problem for problem in status.troubles if problem.code in codes]
    for problem in problems:
        yield wrong(CheckGroup.ZONEWISE, problem.code, problem.sentence, problem.remedy)
    if not problems:
        yield fine(CheckGroup.ZONEWISE, "Running", _running(status))
    yield from _reached(facts)
    yield from _certificates(facts, now)
    yield from _component_rights(facts)
    if facts.budgets_known is False and any(component.name == "zonewise-disruption" for component in status.components):
        fix = "zonewise install --only disruption"
        yield wrong(
            CheckGroup.ZONEWISE, "NoBudgetKind", "TopologyDisruptionBudgets are not defined in the cluster", fix
        )


def _running(status: ClusterStatus) -> str:
    names = [component.name.removeprefix("zonewise-") for component in status.components]
    return f"all components are ready: {', '.join(names)}" if names else "it runs outside of the cluster, and leads"


def _reached(facts: DoctorFacts) -> Iterator[Finding]:
    for name, problem in facts.reached.items():
        if problem is None:
            sentence = f"you may not check whether the API server reaches webhook {name}"
            fix = "allow `get` of services/proxy where it runs, or ask an administrator to run this"
            yield unknown(CheckGroup.ZONEWISE, "WebhookUntried", sentence, fix, (name,))
        elif problem:
            sentence = f"the API server does not reach webhook {name}: {problem}"
            fix = "let the API server through to the webhook's port: network policies, firewalls, its Service"
            yield wrong(CheckGroup.ZONEWISE, "WebhookUnreachable", sentence, fix, (name,))
    reached = tuple(name for name, problem in facts.reached.items() if not problem and problem is not None)
    if reached:
        sentence = f"the API server reaches {counted(len(reached), 'webhook', '').strip()}: {', '.join(reached)}"
        yield fine(CheckGroup.ZONEWISE, "WebhookReached", sentence, objects=reached)


def _certificates(facts: DoctorFacts, now: datetime) -> Iterator[Finding]:
    fix = "restart `zonewise webhook`: it renews its certificates and updates the webhook configuration"
    good: dict[str, datetime] = {}
    for configuration in facts.snapshot.webhooks:
        for webhook in configuration.webhooks:
            if not webhook.client_config.ca_bundle:
                continue  # reported already as WebhookDown
            expiry = _expiry(webhook.client_config.ca_bundle)
            if expiry is None:
                sentence = f"the caBundle of webhook {webhook.name} is no certificate"
                yield wrong(CheckGroup.ZONEWISE, "CertificateUnreadable", sentence, fix, (webhook.name,))
            elif expiry <= now:
                sentence = f"the certificate authority of webhook {webhook.name} expired at {expiry:%Y-%m-%d %H:%M} UTC"
                yield wrong(CheckGroup.ZONEWISE, "CertificateExpired", sentence, fix, (webhook.name,))
            elif expiry <= now + CERTIFICATE_WARNING:
                sentence = f"the certificate authority of webhook {webhook.name} expires at {expiry:%Y-%m-%d %H:%M} UTC"
                yield note(CheckGroup.ZONEWISE, "CertificateExpires", sentence, fix, (webhook.name,))
            else:
                good[webhook.name] = expiry
    if good:
        sentence = f"the certificate authorities of webhooks are valid until {min(good.values()):%Y-%m-%d}"
        yield fine(CheckGroup.ZONEWISE, "Certificate", sentence, objects=tuple(good))


def _expiry(bundle: str) -> datetime | None:
    """Of the certificate that expires last: during renewal the bundle has two."""
    try:
        certificates = x509.load_pem_x509_certificates(base64.b64decode(bundle))
    except (ValueError, binascii.Error):
        return None
    return max(certificate.not_valid_after_utc for certificate in certificates).astimezone(UTC)


def _component_rights(facts: DoctorFacts) -> Iterator[Finding]:
    for name, rights in facts.running.items():
        missing = [str(right) for right, allowed in rights.items() if not allowed]
        if missing:
            sentence = f"{name} may not {missing[0]}" + (f", nor {len(missing) - 1} more" if len(missing) > 1 else "")
            fix = "zonewise install --diff shows what its roles lack; zonewise install puts them back"
            yield wrong(CheckGroup.ZONEWISE, "ComponentRights", sentence, fix, tuple(missing))
    if facts.running and all(allowed for rights in facts.running.values() for allowed in rights.values()):
        sentence = f"{len(facts.running)} components have the rights they need"
        yield fine(CheckGroup.ZONEWISE, "ComponentRights", sentence)


def check_services(facts: DoctorFacts, status: ClusterStatus) -> Iterator[Finding]:
    yield from _unusable_state(facts)
    yield from _contested(facts)
    yield from _other_webhooks(facts)
    for state, code, level, words in (
        (ServiceState.CUT_OFF, "CutOff", FindingLevel.WRONG, "{have} clients that reach no endpoint by their rule"),
        (ServiceState.NOT_IN_FORCE, "NotInForce", FindingLevel.NOTE, "{have} a policy that is not in force"),
    ):
        affected = [service for service in status.services if service.state is state]
        if affected:
            yield _services_finding(code, level, affected, words, f"zonewise explain service {affected[0].outlook.key}")
    with_complaints = [service for service in status.services if service.outlook.complaints]
    if with_complaints:
        yield _services_finding(
            "Complaints",
            FindingLevel.NOTE,
            with_complaints,
            f"{{have}} settings without effect, such as {_quoted(with_complaints[0].outlook.complaints[0])}",
            "zonewise plan -o wide",
        )
    with_losses = list(_losses(status))
    yield from with_losses
    if (
        status.services
        and not (with_complaints or with_losses)
        and not status.states[ServiceState.CUT_OFF] + status.states[ServiceState.NOT_IN_FORCE]
    ):
        yield fine(CheckGroup.SERVICES, "Services", f"{len(status.services)} Services have no problem")


def _losses(status: ClusterStatus) -> Iterator[Finding]:
    """Policies that stock components can't implement: kube-proxy, or DNS for headless Services."""
    with_losses = [service for service in status.services if service.outlook.losses]
    headless = [service for service in with_losses if STOCK_DNS_LOSS in service.outlook.losses]
    proxied = [service for service in with_losses if service not in headless]
    if proxied:
        first = proxied[0].outlook
        words = f"{{have}} a policy that stock proxies can't implement: {_quoted(first.losses[0])}"
        fix = f"kubectl label service -n {first.namespace} {first.name} {PROXY_NAME_LABEL}={PROXY_NAME}"
        yield _services_finding("NeedsProxy", FindingLevel.NOTE, proxied, words, fix)
    if headless:
        words = "{have} a policy that stock DNS can't implement: it gives clients of a headless Service every endpoint"
        yield _services_finding("NeedsDNS", FindingLevel.NOTE, headless, words, "zonewise install --only dns")


def _unusable_state(facts: DoctorFacts) -> Iterator[Finding]:
    """Stored state that this release can't read; components left it alone, or will replace it."""
    problems = {f"budget {key_of(budget)}": refusal(budget) for budget in facts.snapshot.budgets}
    for service in facts.snapshot.services:
        problems[f"Service {key_of(service)}"] = state_problem(service.metadata.annotations.get(ROUTING_STATE, ""))
    for slice_ in facts.snapshot.slices:
        problems[f"EndpointSlice {key_of(slice_)}"] = weights_problem(slice_.metadata.annotations.get(WEIGHTS, ""))
    unusable = {name: problem for name, problem in problems.items() if problem}
    if unusable:
        first, problem = next(iter(unusable.items()))
        more = f", and {len(unusable) - 1} more" if len(unusable) > 1 else ""
        fix = "run one release of Zonewise everywhere, the newest that ran here: zonewise install"
        yield wrong(CheckGroup.SERVICES, "StateUnusable", f"{first}: {problem}{more}", fix, tuple(unusable))


def _contested(facts: DoctorFacts) -> Iterator[Finding]:
    """Two controllers that write slices of the same Service double its endpoints."""
    managers: dict[Key, set[str]] = {}
    for slice_ in facts.snapshot.slices:
        if (key := service_key(slice_)).name:
            managers.setdefault(key, set()).add(slice_.metadata.labels.get(MANAGED_BY, ""))
    contested = [key for key, names in managers.items() if STOCK_MANAGER in names and len(names - {""}) > 1]
    if contested:
        others = sorted({name for key in contested for name in managers[key]} - {STOCK_MANAGER, ""})
        some = ", ".join(map(str, contested[:_MAX_NAMED]))
        sentence = f"{len(contested)} Services have slices by {', '.join(others)} beside the stock controller's: {some}"
        fix = "let one controller write a Service's slices; `kubectl get endpointslices --show-labels` shows who manages them"
        yield note(CheckGroup.SERVICES, "TwoControllers", sentence, fix, tuple(map(str, contested)))


def _other_webhooks(facts: DoctorFacts) -> Iterator[Finding]:
    names = [
        configuration.metadata.name
        for configuration in facts.other_webhooks
        if configuration.metadata.name not in WEBHOOK_CONFIGURATIONS
        and any("endpointslices" in rule.resources for webhook in configuration.webhooks for rule in webhook.rules)
    ]
    if names:
        sentence = f"other webhooks also change EndpointSlices: {', '.join(names[:_MAX_NAMED])}"
        fix = "make sure that they write no hints: the webhook called last wins"
        yield note(CheckGroup.SERVICES, "OtherWebhooks", sentence, fix, tuple(names))


def _services_finding(
    code: str, level: FindingLevel, services: Sequence[RoutingStatus], words: str, fix: str
) -> Finding:
    names = tuple(str(service.outlook.key) for service in services)
    sentence = f"{counted(len(names), 'Service', words)}: {first_names(names, _MAX_NAMED)}"
    return Finding(CheckGroup.SERVICES, code, level, sentence, fix, names)


def _quoted(sentence: str) -> str:
    """Replaces braces: annotation values may contain them, and `counted` would read a verb there."""
    return sentence.replace("{", "(").replace("}", ")")
