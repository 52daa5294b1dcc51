"""`zonewise lab`: start, inspect, disturb and stop clusters on this machine (`zonewise.lab`)."""

from __future__ import annotations

import os
import pathlib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from zonewise.cli import lab_image, lab_status, printing
from zonewise.cli.completion import lab_names, zone_names

if TYPE_CHECKING:
    from collections.abc import Callable

    from zonewise.lab.state import Lab

_PASS_THROUGH = {"ignore_unknown_options": True, "allow_interspersed_args": False}


@click.group(
    epilog="""\b
Example:
  zonewise lab up --zones 3 --nodes 2      three zones with two nodes each
  zonewise lab kubectl -- get nodes -L topology.kubernetes.io/zone
  zonewise lab cut zone-a                  cut zone-a off the network
  zonewise lab heal zone-a
  zonewise lab down                        remove everything
"""
)
def lab() -> None:
    """A real multi-zone Kubernetes cluster on this machine.

    etcd, kube-apiserver, kube-controller-manager and kube-scheduler run as processes of your user. Nodes run pods in
    containers, with kubelet and containerd, in a network of their own (needs root); kwok nodes simulate pods, by the
    thousand.
    """


def _named(command: Callable[..., Any]) -> Callable[..., Any]:
    option = click.option(
        "--name",
        default="default",
        envvar="ZONEWISE_LAB",
        show_default=True,
        shell_complete=lab_names,
        help="Name of the lab; several can run at once.",
    )
    return option(command)


_output = printing.output_option("text", "json")
_kube_version = click.option(
    "--kube-version", default="", help="Kubernetes version, such as v1.35.4. A new version is built first."
)


@lab.command(epilog="Example: zonewise lab setup")
@_kube_version
def setup(kube_version: str) -> None:
    """Prepare this machine: install system packages and build the lab's programs, once.

    As root it also prepares what nodes need; `lab up` does that, too. After an interruption, run it again to continue.
    """
    from zonewise.lab.build import setup as preparation
    from zonewise.lab.build.binaries import DEFAULT_VERSION
    from zonewise.lab.progress import ProgressReporter

    reporter = ProgressReporter(sys.stderr)
    try:
        preparation.run(kube_version or DEFAULT_VERSION, reporter)
        if os.geteuid() == 0:
            preparation.prepare_nodes(reporter)
    finally:
        reporter.close()


@lab.command(
    epilog="""\b
Examples:
  zonewise lab up                                    three zones, two nodes in each
  zonewise lab up --demo --zonewise                  with an application and Zonewise
  zonewise lab up --name big --nodes 0 --kwok-nodes 1000
  zonewise lab up --controllers '*,-endpointslice-controller' --kube-proxy
"""
)
@_named
@click.option(
    "--zones", type=click.IntRange(0, 26), default=3, show_default=True, help="Number of zones; 0 for no nodes."
)
@click.option("--nodes", type=click.IntRange(0), default=None, help="Nodes per zone.  [default: 2 as root, else 0]")
@click.option(
    "--kwok-nodes", type=click.IntRange(0), default=0, help="Total number of simulated nodes, spread over the zones."
)
@_kube_version
@click.option(
    "--controllers", default="*", help="Value of kube-controller-manager's --controllers; '*,-name' for all but one."
)
@click.option("--no-scheduler", is_flag=True, help="Do not run kube-scheduler.")
@click.option("--kube-proxy", is_flag=True, help="Run stock kube-proxy on every node.")
@click.option("--network-policies", is_flag=True, help="Enforce NetworkPolicies, by kube-router on every node.")
@click.option("--demo", is_flag=True, help="Also start a small application in every zone, and print what to try.")
@click.option("--ceph", is_flag=True, help="Also start a small real Ceph cluster with an OSD in every zone.")
@click.option(
    "--zonewise",
    is_flag=True,
    help="Also install Zonewise, as `zonewise install` does, from its image, which is built first.",
)
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
    network_policies: bool,
    demo: bool,
    zonewise: bool,
    ceph: bool,
    output: str,
) -> None:
    """Start a cluster and wait until it is ready.

    If the lab runs already, only changed images and manifests are applied, or an error names the options that differ.
    Images are built before, while the lab can be used; if a build fails, the lab keeps the images that it has.
    Remains of a crashed lab are removed first. Beside other nodes, kwok nodes have the taint
    kwok.x-k8s.io/node=fake:NoSchedule, so that pods that must really run are not scheduled there.
    """
    from zonewise.lab import labs
    from zonewise.lab.build import build
    from zonewise.lab.build import setup as preparation
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
        network_policies=network_policies,
        demo=demo,
        zonewise=zonewise,
        ceph=ceph,
    )
    labs.check(name, options)
    reporter = ProgressReporter(sys.stderr)
    try:
        build.ensure(options.version, reporter)
        if options.has_nodes:
            preparation.prepare_nodes(reporter)
        if options.network_policies:
            preparation.prepare_network_policies(reporter)
        running = labs.up(name, options, reporter.step, reporter)
    finally:
        reporter.close()
    _print_up(running, output)


def _nodes_per_zone(zones: int, nodes: int | None) -> int:
    if nodes is not None:
        return nodes if zones else 0
    if zones and os.geteuid() != 0:
        click.echo("no nodes: they need root", err=True)
        return 0
    return 2 if zones else 0


@lab.command(epilog="Example: zonewise lab down --name big")
@_named
@click.option("--all", "everything", is_flag=True, help="All of your labs.")
def down(name: str, everything: bool) -> None:
    """Stop a cluster and remove everything it created, also after a crash."""
    from zonewise.lab import labs, state

    for lab_name in state.names() if everything else [name]:
        removed = labs.down(lab_name, lambda _step: None)
        click.echo(f"lab {lab_name} is gone" if removed else f"there is no lab {lab_name}", err=True)


@lab.command(epilog="Example: zonewise lab status -o json")
@_named
@_output
@click.pass_context
def status(ctx: click.Context, name: str, output: str) -> None:
    """Show a cluster's processes, zones and nodes. The exit code is 1 if a process ended or a node is not ready."""
    from zonewise.lab import state
    from zonewise.lab import status as statuses

    lab = state.find(name)
    if lab is None:
        state.get(name)  # raises the error
        return
    report = statuses.of(lab)
    if output == "json":
        printing.echo_data(report, output)
    else:
        click.echo(lab_status.describe(report))
    ctx.exit(0 if report.health is statuses.LabHealth.READY else 1)


@lab.command("list", epilog="Example: zonewise lab list")
@_output
def list_(output: str) -> None:
    """List your labs, one per line."""
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


@lab.command(context_settings=_PASS_THROUGH, epilog="Example: zonewise lab kubectl -- get pods -A -o wide")
@_named
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def kubectl(name: str, arguments: tuple[str, ...]) -> None:
    """Run the cluster's own kubectl: `zonewise lab kubectl -- get pods -A`.

    --name comes before the dashes; arguments after them go to kubectl: `zonewise lab kubectl --name big -- get pods -A`.
    """
    lab = _get(name)
    os.environ["KUBECONFIG"] = str(lab.node_kubeconfig)
    _exec([str(lab.binaries / "kubectl"), *arguments])


@lab.command("exec", context_settings=_PASS_THROUGH, epilog="Example: zonewise lab exec zone-a-1 -- ip addr")
@_named
@click.argument("target")
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
def exec_(name: str, target: str, command: tuple[str, ...]) -> None:
    """Run a command inside a node, or a pod on it.

    TARGET is the name of a node or a pod, or NAMESPACE/POD: `zonewise lab exec zone-a-1 -- ip addr`.
    """
    from zonewise.lab.nodes import nodes

    words = command[1:] if command[0] == "--" else command  # click passes the dashes on after an argument
    _exec(nodes.exec_argv(_get(name), target, words))


@lab.command(epilog="Example: zonewise lab logs -f kube-apiserver")
@_named
@click.option("-f", "--follow", is_flag=True, help="Follow the log.")
@click.argument("process", required=False)
def logs(name: str, follow: bool, process: str | None) -> None:
    """Print the log of a process; without PROCESS, list the logs. Also works after a failed start.

    PROCESS may be NAMESPACE/POD, for a pod on a node: `zonewise lab logs shop/front-645c5c6598-6f6t8`.
    """
    from zonewise.errors import ZonewiseError
    from zonewise.lab import processes, state
    from zonewise.lab.nodes import nodes

    if state.find(name) is None:
        state.get(name)  # raises the error
    directory = state.directory_of(name) / processes.LOGS
    names = sorted(path.stem for path in directory.glob("*.log"))
    if process is None:
        click.echo("\n".join(names))
    elif "/" in process:
        _exec(nodes.logs_argv(_get(name), process, follow=follow))
    elif process not in names:
        raise ZonewiseError(f"lab {name!r} has no log of {process!r}: it has {', '.join(names) or 'none'}")
    else:
        _exec(nodes.tail_argv(directory / f"{process}.log", follow=follow))


@lab.command(epilog="Example: zonewise lab load shop.tar")
@_named
@click.argument("archive", type=click.Path(dir_okay=False, path_type=pathlib.Path))
def load(name: str, archive: pathlib.Path) -> None:
    """Load an image archive (`docker save`, `buildah push`) into every node: `zonewise lab load shop.tar`."""
    from zonewise.lab.nodes import nodes

    for image in nodes.load_image(_get(name), archive):
        click.echo(image)


lab.add_command(lab_image.image)


@lab.command(epilog="Example: zonewise lab cut zone-a")
@_named
@click.argument("zone", shell_complete=zone_names)
def cut(name: str, zone: str) -> None:
    """Cut a zone off the network: no packet reaches or leaves it, neither to other zones nor to the API server."""
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
    """Delay packets between two zones, each way: `zonewise lab latency zone-a zone-b 5 --loss 1`.

    0 removes the delay.
    """
    from zonewise.lab.nodes import nodes

    nodes.shape(_get(name), zone, other, milliseconds, loss)
    what = f"{milliseconds:g} ms and {loss:g} % loss each way" if milliseconds or loss else "plain"
    click.echo(f"the path between {zone} and {other} is now {what}")


@lab.command(epilog="Example: zonewise lab ask")
@_named
@click.option("--count", type=click.IntRange(1), default=50, show_default=True, help="Requests per front pod.")
@click.option("--by-name", is_flag=True, help="Connect to a pod address from DNS instead of the Service's cluster IP.")
@_output
def ask(name: str, count: int, by_name: bool, output: str) -> None:
    """Send requests from the demo's front pods to the catalog, and show which zone answered which."""
    from zonewise.lab.demo import zone_answers

    lab = _get(name)
    answers = zone_answers.ask(lab, count, by_name=by_name)
    if output == "json":
        printing.echo_data(zone_answers.account(answers, lab.zones), output)
    else:
        click.echo(zone_answers.table(answers, lab.zones))


def _get(name: str) -> Lab:
    from zonewise.lab import state

    return state.get(name)


def _exec(argv: list[str]) -> NoReturn:
    """Replaces this process, so that signals, output and exit code are those of the program."""
    sys.stdout.flush()
    os.execvp(argv[0], argv)  # noqa: S606 - no shell is needed


def _print_up(running: Lab, output: str) -> None:
    from zonewise.lab import status as statuses

    report = statuses.of(running)
    if output == "json":
        printing.echo_data(report, output)
        return
    from zonewise.lab.demo import tour

    click.echo(lab_status.headline(report))
    click.echo(tour.text(running, terminal=sys.stdout.isatty()))
