"""Pod view of the node agent: the fields needed to run a pod."""

from __future__ import annotations

from typing import Any

import msgspec

from zonewise.objects import Condition, Metadata, Resource, View


class KeyRef(View, frozen=True):
    name: str = ""
    key: str = ""
    optional: bool = False


class FieldRef(View, frozen=True):
    field_path: str = ""


class EnvSource(View, frozen=True):
    field_ref: FieldRef | None = None
    config_map_key_ref: KeyRef | None = None


class EnvVar(View, frozen=True):
    name: str = ""
    value: str = ""
    value_from: EnvSource | None = None


class Header(View, frozen=True):
    name: str = ""
    value: str = ""


class HttpGet(View, frozen=True):
    path: str = "/"
    port: int | str = 0
    host: str = ""
    scheme: str = "HTTP"
    http_headers: tuple[Header, ...] = ()


class TcpSocket(View, frozen=True):
    port: int | str = 0
    host: str = ""


class ExecAction(View, frozen=True):
    command: tuple[str, ...] = ()


class Sleep(View, frozen=True):
    seconds: int = 0


class Probe(View, frozen=True):
    http_get: HttpGet | None = None
    tcp_socket: TcpSocket | None = None
    exec_: ExecAction | None = msgspec.field(default=None, name="exec")
    initial_delay_seconds: int = 0
    period_seconds: int = 10
    timeout_seconds: int = 1
    success_threshold: int = 1
    failure_threshold: int = 3
    termination_grace_period_seconds: int | None = None


class LifecycleHook(View, frozen=True):
    exec_: ExecAction | None = msgspec.field(default=None, name="exec")
    sleep: Sleep | None = None
    http_get: HttpGet | None = None


class LifecycleHooks(View, frozen=True):
    pre_stop: LifecycleHook | None = None


class PodPort(View, frozen=True):
    name: str = ""
    container_port: int = 0


class VolumeMount(View, frozen=True):
    name: str = ""
    mount_path: str = ""


class RunContainer(View, frozen=True):
    name: str = ""
    image: str = ""
    command: tuple[str, ...] = ()
    args: tuple[str, ...] = ()
    working_dir: str = ""
    restart_policy: str = ""
    env: tuple[EnvVar, ...] = ()
    ports: tuple[PodPort, ...] = ()
    volume_mounts: tuple[VolumeMount, ...] = ()
    readiness_probe: Probe | None = None
    liveness_probe: Probe | None = None
    startup_probe: Probe | None = None
    lifecycle: LifecycleHooks = LifecycleHooks()


class ConfigMapVolume(View, frozen=True):
    name: str = ""
    optional: bool = False


class PodVolume(View, frozen=True):
    name: str = ""
    empty_dir: dict[str, Any] | None = None
    config_map: ConfigMapVolume | None = None


class ReadinessGate(View, frozen=True):
    condition_type: str = ""


class RunPodSpec(View, frozen=True):
    node_name: str = ""
    service_account_name: str = ""
    host_network: bool = False
    dns_policy: str = ""
    restart_policy: str = "Always"
    termination_grace_period_seconds: int = 30
    enable_service_links: bool = True
    init_containers: tuple[RunContainer, ...] = ()
    sent_containers: tuple[RunContainer, ...] | None = msgspec.field(default=(), name="containers")
    volumes: tuple[PodVolume, ...] = ()
    readiness_gates: tuple[ReadinessGate, ...] = ()

    @property
    def containers(self) -> tuple[RunContainer, ...]:
        """Only the empty pod in a watch's bookmark has `null` for them."""
        return self.sent_containers or ()


class RunPodStatus(View, frozen=True):
    phase: str = ""
    start_time: str | None = None
    conditions: tuple[Condition, ...] = ()


class PodMetadata(Metadata, frozen=True):
    deletion_grace_period_seconds: int | None = None


class RunPod(View, frozen=True):
    metadata: PodMetadata = PodMetadata()
    spec: RunPodSpec = RunPodSpec()
    status: RunPodStatus = RunPodStatus()

    @property
    def terminating(self) -> bool:
        return self.metadata.deletion_timestamp is not None

    @property
    def all_containers(self) -> tuple[RunContainer, ...]:
        return self.spec.init_containers + self.spec.containers

    def __str__(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"


PODS = Resource(view=RunPod, kind="Pod", plural="pods")
