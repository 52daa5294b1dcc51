"""`zonewise lab`: start, look at, disturb and end clusters on this machine. Everything is done by `zonewise.lab`."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from zonewise.cli import printing
from zonewise.cli.completion import lab_names, zone_names

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from zonewise.lab.state import Lab
    from zonewise.lab.status import LabStatus

_PASSED_ON = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(
    epilog="""\b
Example:
  zonewise lab up --zones 3 --nodes 2      three zones with two nodes each
  zonewise lab kubectl -- get nodes -L topology.kubernetes.io/zone
  zonewise lab cut zone-a                  nothing goes in or out of zone-a
  zonewise lab heal zone-a
  zonewise lab down                        no trace is left
"""
)
def lab() -> None:
    """A real multi-zone Kubernetes cluster on this machine.

    etcd, kube-apiserver, kube-controller-manager and kube-scheduler run as processes of yours. Nodes are of two kinds:
    namespace nodes run pods as real processes with addresses of their own (root), kwok nodes only pretend, by the
    thousand.
    """


def _named(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option(
        "--name",
        default="default",
        envvar="ZONEWISE_LAB",
        show_default=True,
        shell_complete=lab_names,
        help="Which lab; labs run side by side.",
    )
    return option(command)


_output = click.option(
    "-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print it."
)
_kube_version = click.option(
    "--kube-version", default="", help="Kubernetes to run, such as v1.35.4; built when it is new."
)


@lab.command(epilog="Example: zonewise lab setup")
@_kube_version
def setup(kube_version: str) -> None:
    """Prepare this machine: system packages, and the lab's programs (built once).

    `make setup` does this too. Interrupted, it goes on where it stopped.
    """
    from zonewise.lab.build import setup as preparation
    from zonewise.lab.build.binaries import DEFAULT_VERSION
    from zonewise.lab.progress import ProgressReporter

    reporter = ProgressReporter(sys.stderr)
    try:
        preparation.run(kube_version or DEFAULT_VERSION, reporter)
    finally:
        reporter.close()


@lab.command(
    epilog="""\b
Examples:
  zonewise lab up                                    three zones, two namespace nodes in each
  zonewise lab up --name big --nodes 0 --kwok-nodes 1000
  zonewise lab up --controllers '*,-endpointslice-controller' --kube-proxy
"""
)
@_named
@click.option(
    "--zones", type=click.IntRange(0, 26), default=3, show_default=True, help="How many zones; 0 for no nodes."
)
@click.option(
    "--nodes", type=click.IntRange(0), default=None, help="Namespace nodes per zone.  [default: 2 as root, else 0]"
)
@click.option("--kwok-nodes", type=click.IntRange(0), default=0, help="Pretended nodes in all, dealt out to the zones.")
@_kube_version
@click.option(
    "--controllers", default="*", help="As kube-controller-manager's --controllers: '*,-name' for all but one."
)
@click.option("--no-scheduler", is_flag=True, help="Run no kube-scheduler.")
@click.option("--kube-proxy", is_flag=True, help="Run stock kube-proxy on every namespace node.")
@click.option("--demo", is_flag=True, help="Also start a small application in every zone, and say what to try.")
@click.option("--ceph", is_flag=True, help="Also start a real small Ceph with an OSD in every zone.")
@click.option("--zonewise", is_flag=True, help="Also install Zonewise: what `zonewise install` does, without an image.")
@_output
def up(
    name: str,
    zones: int,
    nodes: int | None,
    kwok_nodes: int,
    kube_version: str,
    controllers: str,
    no_scheduler: bool,
    kube_proxy: bool,
    demo: bool,
    zonewise: bool,
    ceph: bool,
    output: str,
) -> None:
    """Start a cluster and wait until it is ready.

    Done already: nothing happens, or you are told which options differ. Crashed before: the rest of it is removed first.
    Where kwok nodes stand beside namespace nodes they carry the taint kwok.x-k8s.io/node=fake:NoSchedule, so that pods
    which should really run do not land there.
    """
    from zonewise.lab import labs
    from zonewise.lab.build import build
    from zonewise.lab.build.binaries import DEFAULT_VERSION
    from zonewise.lab.decide import addresses
    from zonewise.lab.progress import ProgressReporter
    from zonewise.lab.state import LabOptions

    options = LabOptions(
        zones=addresses.zone_names(zones) if zones else (),
        nodes_per_zone=_nodes_per_zone(zones, nodes),
        kwok_nodes=kwok_nodes,
        version=kube_version or DEFAULT_VERSION,
        controllers=controllers,
        scheduler=not no_scheduler,
        kube_proxy=kube_proxy or demo,
        demo=demo,
        zonewise=zonewise,
        ceph=ceph,
    )
    reporter = ProgressReporter(sys.stderr)
    try:
        build.ensure(options.version, reporter)
        running = labs.up(name, options, reporter.step)
    finally:
        reporter.close()
    _print_up(running, output)


def _nodes_per_zone(zones: int, nodes: int | None) -> int:
    if nodes is not None:
        return nodes if zones else 0
    if zones and os.geteuid() != 0:
        click.echo("no namespace nodes: they need root", err=True)
        return 0
    return 2 if zones else 0


@lab.command(epilog="Example: zonewise lab down --name big")
@_named
@click.option("--all", "everything", is_flag=True, help="Every lab of yours.")
def down(name: str, everything: bool) -> None:
    """End a cluster and remove every trace of it, also after a crash."""
    from zonewise.lab import labs, state

    for each in state.names() if everything else [name]:
        gone = labs.down(each, lambda _step: None)
        click.echo(f"lab {each} is gone" if gone else f"there is no lab {each}", err=True)


@lab.command(epilog="Example: zonewise lab status -o json")
@_named
@_output
@click.pass_context
def status(ctx: click.Context, name: str, output: str) -> None:
    """Show a cluster's processes, zones and nodes. Exits with 1 when a process ended or a node is not ready."""
    from zonewise.lab import state
    from zonewise.lab import status as statuses

    found = state.find(name)
    if found is None:
        state.get(name)  # says so
        return
    seen = statuses.of(found)
    if output == "json":
        printing.echo_data(seen, output)
    else:
        click.echo(_describe(seen))
    ctx.exit(0 if seen.health is statuses.LabHealth.READY else 1)


@lab.command("list", epilog="Example: zonewise lab list")
@_output
def list_(output: str) -> None:
    """Name your labs, one on each line."""
    from zonewise.lab import state
    from zonewise.lab import status as statuses

    if output == "json":
        printing.echo_data(statuses.listed(), output)
        return
    for name in state.names():
        click.echo(name)


@lab.command(epilog="Example: export KUBECONFIG=$(zonewise lab kubeconfig)")
@_named
def kubeconfig(name: str) -> None:
    """Print the path of the admin's kubeconfig: `export KUBECONFIG=$(zonewise lab kubeconfig)`."""
    click.echo(_get(name).node_kubeconfig)


@lab.command(context_settings=_PASSED_ON, epilog="Example: zonewise lab kubectl -- get pods -A -o wide")
@_named
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str, arguments: tuple[str, ...]) -> None:
    """Run the cluster's own kubectl: `zonewise lab kubectl -- get pods -A`.

    --name comes before the dashes, what follows them is kubectl's: `zonewise lab kubectl --name big -- get pods -A`.
    """
    found = _get(name)
    os.environ["KUBECONFIG"] = str(found.node_kubeconfig)
    _become([str(found.binaries / "kubectl"), *arguments])


@lab.command("exec", context_settings=_PASSED_ON, epilog="Example: zonewise lab exec zone-a-1 -- ip addr")
@_named
@click.argument("target")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, target: str, command: tuple[str, ...]) -> None:
    """Run a command inside a namespace node or a pod on one.

    TARGET is a node's name, a pod's, or NAMESPACE/POD: `zonewise lab exec zone-a-1 -- ip addr`.
    """
    from zonewise.lab.nodes import nodes

    words = command[1:] if command[0] == "--" else command  # click hands the dashes on after an argument
    _become(nodes.exec_argv(_get(name), target, words))


@lab.command(epilog="Example: zonewise lab logs -f kube-apiserver")
@_named
@click.option("-f", "--follow", is_flag=True, help="Go on with what is written from now on.")
@click.argument("process", required=False)
def logs(name: str, follow: bool, process: str | None) -> None:
    """Print what a process wrote; without PROCESS, name those there are. Also works after a failed start.

    NAMESPACE/POD as PROCESS is a pod on a namespace node: `zonewise lab logs shop/front-645c5c6598-6f6t8`.
    """
    from zonewise.errors import ZonewiseError
    from zonewise.lab import processes, state
    from zonewise.lab.nodes import nodes

    if state.find(name) is None:
        state.get(name)  # says so
    directory = state.directory_of(name) / processes.LOGS
    known = sorted(path.stem for path in directory.glob("*.log"))
    if process is None:
        click.echo("\n".join(known))
    elif "/" in process:
        _tail(nodes.log_path(_get(name), process), follow=follow)
    elif process not in known:
        raise ZonewiseError(f"lab {name!r} has no log of {process!r}: it has {', '.join(known) or 'none'}")
    else:
        _tail(directory / f"{process}.log", follow=follow)


def _tail(path: Path, *, follow: bool) -> NoReturn:
    _become(["tail", "-n", "+1", *(["-F"] if follow else []), str(path)])


@lab.command(epilog="Example: zonewise lab cut zone-a")
@_named
@click.argument("zone", shell_complete=zone_names)
def cut(name: str, zone: str) -> None:
    """Cut a zone off: no packet enters or leaves it, neither to other zones nor to the API server."""
    from zonewise.lab.nodes import nodes

    changed = nodes.cut(_get(name), zone)
    click.echo(f"{zone} is cut off: nothing enters or leaves it" if changed else f"{zone} was cut off before")


@lab.command(epilog="Example: zonewise lab heal zone-a")
@_named
@click.argument("zone", shell_complete=zone_names)
def heal(name: str, zone: str) -> None:
    """Undo `cut`."""
    from zonewise.lab.nodes import nodes

    changed = nodes.heal(_get(name), zone)
    click.echo(f"{zone} is healed: it is no longer cut off" if changed else f"{zone} was not cut off")


@lab.command(epilog="Example: zonewise lab latency zone-a zone-b 10 --loss 1")
@_named
@click.argument("zone", shell_complete=zone_names)
@click.argument("other", shell_complete=zone_names)
@click.argument("milliseconds", type=click.FloatRange(0))
@click.option("--loss", type=click.FloatRange(0, 100), default=0.0, help="Percent of packets dropped, each way.")
def latency(name: str, zone: str, other: str, milliseconds: float, loss: float) -> None:
    """Delay what goes between two zones, each way: `zonewise lab latency zone-a zone-b 5 --loss 1`.

    0 makes the path plain again.
    """
    from zonewise.lab.nodes import nodes

    nodes.shape(_get(name), zone, other, milliseconds, loss)
    what = f"{milliseconds:g} ms and {loss:g} % loss each way" if milliseconds or loss else "plain"
    click.echo(f"the path between {zone} and {other} is now {what}")


@lab.command(epilog="Example: zonewise lab ask")
@_named
@click.option("--count", type=click.IntRange(1), default=50, show_default=True, help="Questions of each front pod.")
@click.option("--by-name", is_flag=True, help="Not through the Service's address, but a pod that DNS names for it.")
@_output
def ask(name: str, count: int, by_name: bool, output: str) -> None:
    """Have the demo's fronts ask the catalog, and show which zone answered whom."""
    from zonewise.lab.demo import zone_answers

    found = _get(name)
    counted = zone_answers.ask(found, count, by_name=by_name)
    if output == "json":
        printing.echo_data(zone_answers.account(counted, found.zones), output)
    else:
        click.echo(zone_answers.table(counted, found.zones))


def _get(name: str) -> Lab:
    from zonewise.lab import state

    return state.get(name)


def _become(argv: list[str]) -> NoReturn:
    """Leave the process to another program: its signals, output and exit code are then its own."""
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - no shell is wanted


def _print_up(running: Lab, output: str) -> None:
    from zonewise.lab import status as statuses

    seen = statuses.of(running)
    if output == "json":
        printing.echo_data(seen, output)
        return
    from zonewise.lab.demo import tour

    click.echo(_headline(seen))
    click.echo(tour.text(running, terminal=sys.stdout.isatty()))


def _headline(seen: LabStatus) -> str:
    zones = f", {len(seen.zones)} zones, {seen.ready_nodes} of {seen.nodes} nodes ready" if seen.zones else ", no nodes"
    place = f" at {seen.server}" if seen.server else ""
    return f"lab {seen.name} is {seen.health}: Kubernetes {seen.kube_version}{place}{zones}"


def _describe(seen: LabStatus) -> str:
    lines = [_headline(seen)]
    if seen.problem:
        lines.append(f"  problem: {seen.problem}; see `zonewise lab logs --name {seen.name}`")
    if seen.zones:
        lines.append(f"  {'ZONE':24} {'NAMESPACE':>9} {'KWOK':>6} {'READY':>6}")
        lines += [
            f"  {zone.name or '(none)':24} {zone.namespace_nodes:9} {zone.kwok_nodes:6} {zone.ready_nodes:6}{'  cut off' if zone.cut else ''}"
            for zone in seen.zones
        ]
    lines.append(f"  {'PROCESS':24} {'PID':>9} {'MEMORY':>9}")
    lines += [
        f"  {process.name:24} {process.pid:9} {f'{process.memory_bytes >> 20} MiB' if process.running else 'ended':>9}"
        for process in seen.processes
    ]
    return "\n".join(lines)
