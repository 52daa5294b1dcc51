"""`lab up` and `lab down`: control plane, nodes and kwok nodes.

`up` writes the lab's record first and marks it ready last, so a record in between is left by a crash and is
removed before a new start. What to stop is found through records and names, never through memory.
"""

import io
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab import node_owner, processes, slots, state
from zonewise.lab.build import binaries, container_images, kube_router, node_runtime, setup
from zonewise.lab.build.container_images import ImageTarget
from zonewise.lab.ceph import cluster
from zonewise.lab.controlplane import controlplane
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import SERVICE_RANGES, WEBHOOKS_AT_PODS, Program
from zonewise.lab.decide import addresses
from zonewise.lab.nodes import cgroups, loop_devices, machine, node_programs, nodes
from zonewise.lab.progress import ProgressReporter
from zonewise.lab.state import Lab, LabImage, LabOptions, LabPhase

Progress = Callable[[str], None]
_CONTROL_PLANE_NICENESS = -5
_CEPH_PORT = 8  # of the lab's own ports: its monitor's, and the last that is looked at before a lab takes them
_DASHBOARD_GRACE_SECONDS = 5.0
_FLAGS = {
    "zones": "--zones",
    "nodes_per_zone": "--nodes",
    "kwok_nodes": "--kwok-nodes",
    "version": "--kube-version",
    "controllers": "--controllers",
    "scheduler": "the scheduler",
    "kube_proxy": "--kube-proxy",
    "network_policies": "--network-policies",
    "demo": "--demo",
    "zonewise": "--zonewise",
    "ceph": "--ceph",
    "cluster_dns": "the cluster's DNS address in pods",
    "images": "images at the start",
}


def up(name: str, options: LabOptions, progress: Progress, builds: ProgressReporter | None = None) -> Lab:
    """The lab as asked for, running. Remains of a crashed one are removed first.

    A lab that runs already gets changed images and manifests only; it keeps its images if their build fails. `builds`
    shows the progress.
    """
    check(name, options)
    images = _build_images(name, options, builds or ProgressReporter(io.StringIO()))
    with state.locked(name), _ended_by_signals():
        running = _running(name, options)
        if running is not None:
            running = _with_images_of_now(running, images, progress)
            _install_contents(running, progress)
            return running
        if state.directory_of(name).exists():
            progress("removing the rest of a lab that crashed")
            _remove(name)
        programs = _find_programs(options, images)
        return _start(name, options, programs, progress)


def down(name: str, progress: Progress) -> bool:
    """End the lab and remove every trace of it; False when there was none."""
    directory = state.directory_of(name)
    if not (directory.exists() or state.has_lock(name)):
        return False
    with state.locked(name):
        if directory.exists():
            progress(f"removing lab {name}")
            _remove(name)
            return True
        slots.release(directory)  # of a `down` that was killed at its end
    return False


def _running(name: str, options: LabOptions) -> Lab | None:
    """The lab, if it came up and not all of it has ended since, as after a reboot. People keep things in labs: what still
    runs is only removed when they say so.
    """
    lab = state.find(name)
    recorded = [*processes.recorded(lab.directory), *processes.recorded(lab.ceph)] if lab is not None else []
    if lab is None or lab.phase is not LabPhase.READY or not any(process.running for process in recorded):
        return None
    state.require_current(lab)
    ended = [process.name for process in recorded if not process.running]
    if ended or lab.options != options:
        what = f"is broken ({', '.join(ended)} ended)" if ended else f"is running {_differences(lab.options, options)}"
        raise ZonewiseError(f"lab {name!r} {what}: end it first with `zonewise lab down --name {name}`")
    return lab


def _differences(running: LabOptions, asked: LabOptions) -> str:
    """Which options differ, in the words of the command line."""
    before, after = msgspec.to_builtins(running), msgspec.to_builtins(asked)
    shown = [
        f"{_FLAGS[key]} {_shown(before[key])}, not {_shown(after[key])}" for key in before if before[key] != after[key]
    ]
    return f"with other options: {'; '.join(shown)}"


def _shown(value: object) -> str:
    match value:
        case bool():
            return "on" if value else "off"
        case list() | tuple():
            return str(len(value))
        case _:
            return str(value)


def check(name: str, options: LabOptions) -> None:
    """Raises UsageError for options that do not go together, before anything is built or started."""
    if options.ceph and not options.zones:
        raise UsageError("Ceph has a zone for each of the lab's: ask for at least one with --zones")
    if options.kwok_nodes and not options.zones:
        raise UsageError("kwok nodes need zones: ask for at least one with --zones")
    if options.kube_proxy and not options.has_nodes:
        raise UsageError("kube-proxy runs on nodes: ask for some with --zones and --nodes")
    if options.network_policies and not options.has_nodes:
        raise UsageError("network policies are enforced on nodes: ask for some with --zones and --nodes")
    if options.demo and not options.kube_proxy:
        raise UsageError("the demo's pods find each other through Services: ask for --kube-proxy too")
    if options.zonewise and not options.has_nodes:
        raise UsageError("Zonewise runs in pods: ask for nodes with --zones and --nodes")
    if options.has_nodes:
        machine.require()
        addresses.plan(name, 0, options.zones, options.nodes_per_zone)  # says so if there is no room for them


@dataclass(frozen=True, slots=True)
class LabPrograms:
    """What a lab runs, beside the system's commands."""

    binaries: Path
    runtime: Path | None = None
    kube_router: Path | None = None
    image: LabImage | None = None
    csi_image: LabImage | None = None


@dataclass(frozen=True, slots=True)
class BuiltImages:
    """Of the sources as they are now: for the programs, and for the storage driver."""

    image: LabImage | None = None
    csi_image: LabImage | None = None
    error: ZonewiseError | OSError | None = None


def _find_programs(options: LabOptions, images: BuiltImages) -> LabPrograms:
    built = binaries.find(options.version).directory
    if not options.has_nodes:
        return LabPrograms(built)
    machine.require(setup.missing_for_nodes(network_policies=options.network_policies))
    router = kube_router.find() if options.network_policies else None
    runtime = node_runtime.find()
    if images.error is not None:
        raise images.error
    return LabPrograms(built, runtime, router, images.image, images.csi_image)


def _build_images(name: str, options: LabOptions, reporter: ProgressReporter) -> BuiltImages:
    """Before the lab is locked: in the minutes that it may take, a lab that runs can be used."""
    if not (options.demo or options.zonewise):
        return BuiltImages()
    with state.locked(name):
        _running(name, options)  # says now what it would say after the build
    try:
        image = _image(ImageTarget.PROGRAMS, reporter)
        return BuiltImages(image, _image(ImageTarget.CSI, reporter) if options.zonewise and options.ceph else None)
    except (ZonewiseError, OSError) as error:
        return BuiltImages(error=error)


def _with_images_of_now(lab: Lab, images: BuiltImages, progress: Progress) -> Lab:
    """The lab, whose nodes have the images of sources that were changed since it started."""
    if images.error is not None:
        progress(f"no new images, the lab keeps those it has: {images.error}")
        return lab
    image, csi_image = images.image, images.csi_image
    if (image, csi_image) == (lab.image, lab.csi_image):
        return lab
    for made, loaded in ((image, lab.image), (csi_image, lab.csi_image)):
        if made is not None and made != loaded:
            progress(f"loading {made.name}")
            nodes.load_image(lab, made.archive)
    from zonewise.lab.demo import installed  # noqa: PLC0415 - the HTTP client again

    processes.dismiss(lab.directory, installed.DASHBOARD, _DASHBOARD_GRACE_SECONDS)  # it runs the former sources
    lab = msgspec.structs.replace(lab, image=image, csi_image=csi_image)
    lab.save()
    return lab


def _image(target: ImageTarget, reporter: ProgressReporter) -> LabImage:
    archive = container_images.ensure(target, reporter)
    return LabImage(archive.name, archive.path)


def _start(name: str, options: LabOptions, programs: LabPrograms, progress: Progress) -> Lab:
    directory = state.directory_of(name)
    directory.mkdir(mode=0o700, parents=True)
    try:
        lab = _register(name, directory, options, programs)
        if options.has_nodes:
            progress("creating the network")
            machine.allow_watchers()
            nodes.prepare(lab)
        _start_control_plane(lab, progress)
        _start_ceph(lab, progress)
        _add_nodes(lab, progress)
        lab = msgspec.structs.replace(lab, phase=LabPhase.READY)
        lab.save()
        _install_contents(lab, progress)
    except Exception:
        _keep_logs_after_failure(name)
        raise
    except BaseException:
        with ignoring_signals():
            _remove(name)
        raise
    return lab


def _keep_logs_after_failure(name: str) -> None:
    """The error names the logs, which stay until the next `up` or `down`. A lab that only lacks its demo keeps running."""
    lab = state.find(name)
    if lab is None:
        _remove(name)
    elif lab.phase is LabPhase.STARTING:
        if lab.options.has_nodes:
            nodes.down(name, lab.slot)
        cluster.remove(lab.ceph, keep_logs=True)
        controlplane.halt(lab.directory)
        if lab.options.has_nodes:
            _remove_cgroups(name)


def _register(name: str, directory: Path, options: LabOptions, programs: LabPrograms) -> Lab:
    """Claim a slot and put the lab on record."""
    slot = slots.claim(directory)
    if options.has_nodes:
        node_owner.require_free_name(name, directory)
    lab = Lab(
        name=name,
        directory=directory,
        slot=slot,
        options=options,
        binaries=programs.binaries,
        runtime=programs.runtime,
        kube_router=programs.kube_router,
        image=programs.image,
        csi_image=programs.csi_image,
    )
    lab.save()
    return lab


def _start_control_plane(lab: Lab, progress: Progress) -> None:
    options = lab.options
    wanted = {Program.SCHEDULER: options.scheduler, Program.KWOK: options.kwok_nodes > 0}
    ControlPlane.start(
        lab.directory,
        version=options.version,
        programs=tuple(program for program in Program if wanted.get(program, True)),
        controllers=options.controllers,
        address=_address(lab),
        flags=_flags(lab),
        progress=progress,
    )


def _flags(lab: Lab) -> dict[Program, tuple[str, ...]]:
    """With nodes, Services have both IP families, cut zones are noticed soon, and the API server reaches kubelets and webhooks."""
    if not lab.options.has_nodes:
        return {}
    kubelets = node_programs.api_server_flags(lab.directory / "pki")
    services = f"--service-cluster-ip-range={','.join(SERVICE_RANGES)}"
    return {
        Program.CONTROLLER_MANAGER: nodes.CONTROLLER_MANAGER_FLAGS,
        Program.APISERVER: (*kubelets, *WEBHOOKS_AT_PODS, services),
    }


def _start_ceph(lab: Lab, progress: Progress) -> None:
    if lab.options.ceph:
        progress("starting Ceph")
        cluster.start(lab.ceph, lab.zones, address=_address(lab), port=slots.port(lab.slot, _CEPH_PORT))


def _address(lab: Lab) -> str:
    """One that nodes reach, where there are some."""
    return str(addresses.host_addresses(lab.slot).v4) if lab.options.has_nodes else "127.0.0.1"


def _add_nodes(lab: Lab, progress: Progress) -> None:
    options = lab.options
    if options.has_nodes:
        progress(f"starting {len(options.zones) * options.nodes_per_zone} nodes")
        nodes.up(lab, progress)
    if options.kwok_nodes:
        from zonewise.lab.nodes import kwok  # noqa: PLC0415 - brings the HTTP client, which a start without them does not need

        progress(f"creating {options.kwok_nodes} kwok nodes")
        tainted = options.has_nodes
        kwok.up(lab.node_kubeconfig, kwok.manifests(options.kwok_nodes, options.zones, tainted=tainted))


def _install_contents(lab: Lab, progress: Progress) -> None:
    """Also a lab that runs: what failed to start is tried again. Both start at once, and neither waits for the other."""
    if not (lab.options.demo or lab.options.zonewise):
        return
    from zonewise.lab.demo import app, installed  # noqa: PLC0415 - the HTTP client again

    if lab.options.zonewise:
        progress("installing Zonewise")
        _raise_control_plane_priority(lab)
        app.until_nodes_take_pods(lab)
        installed.apply(lab, installed.documents(lab))
    if lab.options.demo:
        progress("starting the demo application")
        app.up(lab)
    if lab.options.zonewise:
        progress("waiting for Zonewise")
        installed.start_dashboard(lab)
        installed.wait(lab, installed.documents(lab))


def _raise_control_plane_priority(lab: Lab) -> None:
    """Some forty pods start at once: if the API server got no time, none could report that it is ready, and all would retry.

    By process group, which every program of it is alone in: a priority is a thread's own.
    """
    for program in Program:
        process = processes.find(lab.directory, program)
        with suppress(PermissionError, ProcessLookupError):
            if process is not None and process.running:
                os.setpriority(os.PRIO_PGRP, process.pid, _CONTROL_PLANE_NICENESS)


def _remove(name: str) -> None:
    """From the outside in: what uses the control plane first, the record last, so that it can be called again.

    Without a record, as after a crash, what bears the name is the lab's unless it may be another's.
    """
    directory, lab = state.directory_of(name), state.find(name)
    has_nodes = lab.options.has_nodes if lab is not None else node_owner.owns_nodes(name, directory)
    if has_nodes:
        nodes.down(name, lab.slot if lab is not None else slots.held(directory))
    cluster.remove(directory / "ceph")
    controlplane.halt(directory)
    if has_nodes:
        _remove_cgroups(name)
    controlplane.remove(directory)


def _remove_cgroups(name: str) -> None:
    """Once nothing can start any more.

    Waits for the end of all that ran in them, and so of its mounts; then frees their devices.
    """
    cgroups.remove(name)
    loop_devices.detach_dead()


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end `up` as Ctrl-C does: by an exception, so that what was started is removed."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ignoring_signals() -> Iterator[None]:
    """Removing takes a second; a second Ctrl-C in it must not leave half."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
