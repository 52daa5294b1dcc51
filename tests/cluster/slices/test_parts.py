"""`zonewise controller --parts slices,disruption`: two parts, one client and one set of watches."""

import re
import signal

from support.disruption.processes import install
from support.lab.machine import ZONEWISE
from support.process import Program, wait_for
from support.slices.cluster import ClusterNamespace
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import LEASES

_REQUESTS = re.compile(r"^zonewise_kube_requests_total\{(.*)\} (\S+)$", re.MULTILINE)


def watches_of(program: Program, resource: str) -> float:
    """How many watches it has opened, however they ended."""
    requests = _REQUESTS.findall(program.probe("/metrics")[1])
    return sum(float(count) for labels, count in requests if f'resource="{resource}",verb="watch"' in labels)


async def test_parts_share_watches_and_do_not_wait_for_each_other(
    slice_plane: ControlPlane, ns: ClusterNamespace
) -> None:
    arguments = ("--kubeconfig", slice_plane.kubeconfig, "--health-port", 0, "--log-format", "json")
    lease = ("--lease-namespace", ns.namespace)
    program = Program(str(ZONEWISE), "controller", "--parts", "slices,disruption", *arguments, *lease)
    try:
        assert program.line("controller started")["mode"] == "own"
        assert "[-]budgets failed" in program.probe("/readyz")[1], "the kind of budgets is not installed yet"
        assert "disruption controller started" not in program.events
        await install(slice_plane)
        program.line("disruption controller started")
        program.wait_ready()
        assert watches_of(program, "pods") == 1
        assert watches_of(program, "nodes") == 1
        wait_for(lambda: program.events.count("leadership gained") == 2)
        program.signal(signal.SIGTERM)
        assert program.end() == 0
        assert program.events.count("leadership released") == 2
        leases = (await ns.client.list(LEASES, ns.namespace)).items
        assert len(leases) == 2
        assert not any(lease.spec.holder_identity for lease in leases)
    finally:
        program.remove()
