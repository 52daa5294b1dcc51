"""The doctor: everything that is looked at, and what is found, each with what to do about it. Pure.

`clusterchecks` looks at the cluster itself; this at Zonewise in it and at the Services, and puts it all together.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509

from zonewise.api.names import MANAGED_BY, PROXY_NAME, PROXY_NAME_LABEL, STOCK_MANAGER
from zonewise.diagnostics.decide.doctor.cluster_checks import check_cluster, check_data_plane, check_nodes
from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
from zonewise.diagnostics.decide.doctor.findings import CheckGroup, Diagnosis, Finding, FindingLevel, counted
from zonewise.diagnostics.decide.status.assemble import WEBHOOK_CONFIGURATIONS, build_status
from zonewise.diagnostics.decide.status.report import ClusterStatus, RoutingStatus, ServiceState
from zonewise.objects import Key
from zonewise.routing import HintsForm
from zonewise.slices.decide.names import service_key
from zonewise.slices.decide.service_status import STOCK_DNS_LOSS

CERTIFICATE_WARNING: Final = timedelta(days=7)
_NAMED: Final = 3


def diagnose(
    facts: DoctorFacts, now: datetime, hints: HintsForm = HintsForm.STABLE, *, before_install: bool = False
) -> Diagnosis:
    """`before_install` looks at nothing that only an installed Zonewise has."""
    status = build_status(facts.seen, now, hints)
    findings = [*check_cluster(facts, now), *check_nodes(facts), *check_data_plane(facts)]
    if not before_install:
        findings += check_zonewise(facts, status, now)
    findings += check_services(facts, status)
    return Diagnosis(
        at=status.at,
        server=facts.seen.server,
        version=facts.seen.version,
        installed=status.installed,
        wrong=sum(found.level is FindingLevel.WRONG for found in findings),
        notes=sum(found.level is FindingLevel.NOTE for found in findings),
        findings=tuple(findings),
    )


def check_zonewise(facts: DoctorFacts, status: ClusterStatus, now: datetime) -> Iterator[Finding]:
    if not status.installed:
        sentence = "Zonewise is not installed here"
        yield Finding(CheckGroup.ZONEWISE, "NotInstalled", FindingLevel.NOTE, sentence, "zonewise install")
        return
    troubles = {"ComponentNotReady", "NoLeader", "WebhookDown"}
    found = [each for each in status.troubles if each.code in troubles]
    for trouble in found:
        yield Finding(CheckGroup.ZONEWISE, trouble.code, FindingLevel.WRONG, trouble.sentence, trouble.remedy)
    if not found:
        yield Finding(CheckGroup.ZONEWISE, "Running", FindingLevel.FINE, _what_runs(status))
    yield from _reached(facts)
    yield from _certificates(facts, now)
    yield from _component_rights(facts)
    if facts.budgets_known is False and any(component.name == "zonewise-disruption" for component in status.components):
        fix = "zonewise install --only disruption"
        yield Finding(
            CheckGroup.ZONEWISE,
            "NoBudgetKind",
            FindingLevel.WRONG,
            "the cluster knows no TopologyDisruptionBudget",
            fix,
        )


def _what_runs(status: ClusterStatus) -> str:
    names = [component.name.removeprefix("zonewise-") for component in status.components]
    return f"everything is ready: {', '.join(names)}" if names else "it runs outside of the cluster, and leads"


def _reached(facts: DoctorFacts) -> Iterator[Finding]:
    for name, problem in facts.reached.items():
        if problem is None:
            sentence = f"whether the API server reaches webhook {name} can't be tried with your rights"
            fix = "allow `get` of services/proxy where it runs, or ask an administrator to run this"
            yield Finding(CheckGroup.ZONEWISE, "WebhookUntried", FindingLevel.UNKNOWN, sentence, fix, (name,))
        elif problem:
            sentence = f"the API server does not reach webhook {name}: {problem}"
            fix = "let the API server through to the webhook's port: network policies, firewalls, its Service"
            yield Finding(CheckGroup.ZONEWISE, "WebhookUnreachable", FindingLevel.WRONG, sentence, fix, (name,))
    reached = tuple(name for name, problem in facts.reached.items() if not problem and problem is not None)
    if reached:
        sentence = f"the API server reaches {counted(len(reached), 'webhook', '').strip()}: {', '.join(reached)}"
        yield Finding(CheckGroup.ZONEWISE, "WebhookReached", FindingLevel.FINE, sentence, objects=reached)


def _certificates(facts: DoctorFacts, now: datetime) -> Iterator[Finding]:
    fix = "restart `zonewise webhook`: it renews its certificates and tells the API server"
    good: dict[str, datetime] = {}
    for configuration in facts.seen.webhooks:
        for webhook in configuration.webhooks:
            if not webhook.client_config.ca_bundle:
                continue  # told already: nothing trusts it
            ends = _ends(webhook.client_config.ca_bundle)
            if ends is None:
                sentence = f"the caBundle of webhook {webhook.name} is no certificate"
                yield Finding(
                    CheckGroup.ZONEWISE, "CertificateUnreadable", FindingLevel.WRONG, sentence, fix, (webhook.name,)
                )
            elif ends <= now:
                sentence = f"the certificate authority of webhook {webhook.name} expired at {ends:%Y-%m-%d %H:%M} UTC"
                yield Finding(
                    CheckGroup.ZONEWISE, "CertificateExpired", FindingLevel.WRONG, sentence, fix, (webhook.name,)
                )
            elif ends <= now + CERTIFICATE_WARNING:
                sentence = f"the certificate authority of webhook {webhook.name} expires at {ends:%Y-%m-%d %H:%M} UTC"
                yield Finding(
                    CheckGroup.ZONEWISE, "CertificateExpires", FindingLevel.NOTE, sentence, fix, (webhook.name,)
                )
            else:
                good[webhook.name] = ends
    if good:
        sentence = f"the certificate authorities of webhooks hold until {min(good.values()):%Y-%m-%d}"
        yield Finding(CheckGroup.ZONEWISE, "Certificate", FindingLevel.FINE, sentence, objects=tuple(good))


def _ends(bundle: str) -> datetime | None:
    """When the last of them does: while one is renewed, both are in the bundle."""
    try:
        found = x509.load_pem_x509_certificates(base64.b64decode(bundle))
    except (ValueError, binascii.Error):
        return None
    return max(each.not_valid_after_utc for each in found).astimezone(UTC)


def _component_rights(facts: DoctorFacts) -> Iterator[Finding]:
    for name, rights in facts.running.items():
        missing = [str(need) for need, allowed in rights.items() if not allowed]
        if missing:
            sentence = f"{name} may not {missing[0]}" + (f", nor {len(missing) - 1} more" if len(missing) > 1 else "")
            fix = "zonewise install --diff shows what its roles lack; zonewise install puts them back"
            yield Finding(CheckGroup.ZONEWISE, "ComponentRights", FindingLevel.WRONG, sentence, fix, tuple(missing))
    if facts.running and all(allowed for rights in facts.running.values() for allowed in rights.values()):
        sentence = f"{len(facts.running)} components have the rights they need"
        yield Finding(CheckGroup.ZONEWISE, "ComponentRights", FindingLevel.FINE, sentence)


def check_services(facts: DoctorFacts, status: ClusterStatus) -> Iterator[Finding]:
    yield from _contested(facts)
    yield from _other_webhooks(facts)
    for state, code, level, words in (
        (ServiceState.CUT_OFF, "CutOff", FindingLevel.WRONG, "{have} clients that reach no endpoint by their rule"),
        (ServiceState.NOT_IN_FORCE, "NotInForce", FindingLevel.NOTE, "{have} a policy that is not in force"),
    ):
        those = [service for service in status.services if service.state is state]
        if those:
            yield _about(code, level, those, words, f"zonewise explain service {those[0].outlook.key}")
    odd = [service for service in status.services if service.outlook.complaints]
    if odd:
        yield _about(
            "Complaints",
            FindingLevel.NOTE,
            odd,
            f"{{say}} what has no effect, such as {_quoted(odd[0].outlook.complaints[0])}",
            "zonewise plan -o wide",
        )
    lossy = list(_losses(status))
    yield from lossy
    if (
        status.services
        and not (odd or lossy)
        and not status.states[ServiceState.CUT_OFF] + status.states[ServiceState.NOT_IN_FORCE]
    ):
        yield Finding(
            CheckGroup.SERVICES, "Services", FindingLevel.FINE, f"{len(status.services)} Services are as they ask to be"
        )


def _losses(status: ClusterStatus) -> Iterator[Finding]:
    """What stock components won't do of what is asked. Headless Services are no proxy's, but DNS's."""
    lossy = [service for service in status.services if service.outlook.losses]
    headless = [service for service in lossy if STOCK_DNS_LOSS in service.outlook.losses]
    others = [service for service in lossy if service not in headless]
    if others:
        first = others[0].outlook
        words = f"{{ask}} what stock proxies can't do: {_quoted(first.losses[0])}"
        fix = f"kubectl label service -n {first.namespace} {first.name} {PROXY_NAME_LABEL}={PROXY_NAME}"
        yield _about("NeedsProxy", FindingLevel.NOTE, others, words, fix)
    if headless:
        words = "{ask} what stock DNS can't do: it gives the clients of a headless Service every endpoint"
        yield _about("NeedsDNS", FindingLevel.NOTE, headless, words, "zonewise install --only dns")


def _contested(facts: DoctorFacts) -> Iterator[Finding]:
    """Two controllers that each write all slices of a Service double its endpoints."""
    managers: dict[Key, set[str]] = {}
    for found in facts.seen.slices:
        if (key := service_key(found)).name:
            managers.setdefault(key, set()).add(found.metadata.labels.get(MANAGED_BY, ""))
    contested = [key for key, names in managers.items() if STOCK_MANAGER in names and len(names - {""}) > 1]
    if contested:
        others = sorted({name for key in contested for name in managers[key]} - {STOCK_MANAGER, ""})
        some = ", ".join(map(str, contested[:_NAMED]))
        sentence = f"{len(contested)} Services have slices by {', '.join(others)} beside the stock controller's: {some}"
        fix = "let one controller write a Service's slices; `kubectl get endpointslices --show-labels` tells whose they are"
        yield Finding(
            CheckGroup.SERVICES, "TwoControllers", FindingLevel.NOTE, sentence, fix, tuple(map(str, contested))
        )


def _other_webhooks(facts: DoctorFacts) -> Iterator[Finding]:
    names = [
        configuration.metadata.name
        for configuration in facts.other_webhooks
        if configuration.metadata.name not in WEBHOOK_CONFIGURATIONS
        and any("endpointslices" in rule.resources for webhook in configuration.webhooks for rule in webhook.rules)
    ]
    if names:
        sentence = f"other webhooks change EndpointSlices, too: {', '.join(names[:_NAMED])}"
        fix = "see that they write no hints: whoever is called last has the last word"
        yield Finding(CheckGroup.SERVICES, "OtherWebhooks", FindingLevel.NOTE, sentence, fix, tuple(names))


def _about(code: str, level: FindingLevel, services: Sequence[RoutingStatus], words: str, fix: str) -> Finding:
    names = tuple(str(service.outlook.key) for service in services)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    sentence = f"{counted(len(names), 'Service', words)}: {', '.join(names[:_NAMED])}{more}"
    return Finding(CheckGroup.SERVICES, code, level, sentence, fix, names)


def _quoted(sentence: str) -> str:
    """What a Service says may look like anything, a verb in braces too."""
    return sentence.replace("{", "(").replace("}", ")")
