"""Credentials of a lab: certificates, and a kubeconfig for every user."""

import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from zonewise.lab.controlplane import kubeconfig, pki, programs
from zonewise.lab.controlplane.programs import (
    ADMIN,
    FRONT_PROXY_CA,
    FRONT_PROXY_CLIENT,
    KUBELET_CLIENT,
    ControlPlaneFiles,
)
from zonewise.lab.records import write_private

_SERVICE_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")


def write(layout: ControlPlaneFiles, address: str, server: str) -> None:
    """Everything the programs are started with."""
    now = dt.datetime.now(dt.UTC)
    layout.pki.mkdir(mode=0o700, exist_ok=True)
    authority = pki.LabAuthority.create("zonewise-lab", now)
    authority.pair.write(layout.pki, "ca")
    hosts = ["localhost", *_SERVICE_NAMES, "127.0.0.1", programs.KUBERNETES_SERVICE_ADDRESS, address]
    authority.server("kube-apiserver", hosts, now).write(layout.pki, "apiserver")
    write_private(layout.pki / "sa.key", pki.service_account_key())
    front_proxy = pki.LabAuthority.create(FRONT_PROXY_CA, now)
    front_proxy.pair.write(layout.pki, FRONT_PROXY_CA)
    front_proxy.client(FRONT_PROXY_CLIENT, (), now).write(layout.pki, FRONT_PROXY_CLIENT)
    for name, user in programs.USERS.items():
        pair = authority.client(user.name, user.groups, now)
        kubeconfig.write(layout.kubeconfig(name), server, authority.pair.certificate_pem, user.name, pair)
        if name in (ADMIN, KUBELET_CLIENT):
            pair.write(layout.pki, name)


def add_user(layout: ControlPlaneFiles, server: str, name: str, user: str, groups: Sequence[str]) -> Path:
    authority = pki.LabAuthority.load(layout.pki)
    pair = authority.client(user, groups, dt.datetime.now(dt.UTC))
    kubeconfig.write(layout.kubeconfig(name), server, authority.pair.certificate_pem, user, pair)
    return layout.kubeconfig(name)


def add_server(layout: ControlPlaneFiles, directory: Path, name: str, hosts: Sequence[str]) -> None:
    """A serving certificate for these hosts, as `name` in that directory."""
    pki.LabAuthority.load(layout.pki).server(name, hosts, dt.datetime.now(dt.UTC)).write(directory, name)
