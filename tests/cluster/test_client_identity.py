"""Client authentication: tokens, certificates and CAs, and their rotation at runtime."""

import datetime as dt
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest
import yaml

from support.lab.whoami import whoami
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.errors import DeadlineExceeded, Forbidden, Unauthorized, Untrusted
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.pki import KeyPair, LabAuthority
from zonewise.objects import CONFIG_MAPS, PODS, SERVICE_ACCOUNTS

V1 = "client.authentication.k8s.io/v1"


def access(cluster: ControlPlane, folder: Path, user: dict[str, Any], **cluster_fields: Any) -> ClusterAccess:
    document = {
        "current-context": "it",
        "clusters": [
            {
                "name": "c",
                "cluster": {"server": cluster.server, "certificate-authority": str(cluster.ca_path), **cluster_fields},
            }
        ],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
    }
    path = folder / "config"
    path.write_text(yaml.safe_dump(document))
    return kubeconfig.load(path)


async def token(client: Client, namespace: str, account: str) -> str:
    path = SERVICE_ACCOUNTS.path(namespace, account, "token")
    body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}'
    return str(json.loads(await client.request("POST", path, body=body))["status"]["token"])


def signed(cluster: ControlPlane, user: str) -> KeyPair:
    return LabAuthority.load(cluster.layout.pki).client(user, (), dt.datetime.now(dt.UTC))


async def test_admin_certificate_authenticates(client: Client) -> None:
    me = await whoami(client)
    assert (me.username, "system:masters" in me.groups) == ("admin", True)


async def test_missing_rights_raise_forbidden(cluster: ControlPlane, namespace: str, tmp_path: Path) -> None:
    signed(cluster, "jane").write(tmp_path, "me")
    async with Client(access(cluster, tmp_path, {"client-certificate": "me.crt", "client-key": "me.key"})) as jane:
        with pytest.raises(Forbidden, match=f'^forbidden: list of pods in {namespace}: .*User "jane" cannot list'):
            await jane.list(PODS, namespace)


async def test_wrong_token_raises_unauthorized(cluster: ControlPlane, tmp_path: Path) -> None:
    async with Client(access(cluster, tmp_path, {"token": "wrong"})) as client:
        with pytest.raises(Unauthorized, match=r"^unauthorized: list of pods: "):
            await client.list(PODS)


async def test_impersonated_user_uid_groups_and_extra_are_sent(cluster: ControlPlane, tmp_path: Path) -> None:
    pair = {"client-certificate": cluster.layout.pki / "admin.crt", "client-key": cluster.layout.pki / "admin.key"}
    user = {name: str(path) for name, path in pair.items()}
    user |= {"as": "jane", "as-uid": "7", "as-groups": ["x", "y"], "as-user-extra": {"example.com/Scope": ["a", "b"]}}
    async with Client(access(cluster, tmp_path, user)) as client:
        me = await whoami(client)
    assert (me.username, me.uid, me.groups) == ("jane", "7", ["x", "y", "system:authenticated"])
    assert me.extra == {"example.com/scope": ["a", "b"]}


async def test_in_cluster_token_file_is_reread(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "next"}}, namespace)
    (tmp_path / "token").write_text(await token(client, namespace, "default"))
    (tmp_path / "ca.crt").write_bytes(cluster.ca_path.read_bytes())
    (tmp_path / "namespace").write_text(namespace)
    host, port = cluster.server.removeprefix("https://").split(":")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}
    async with Client(kubeconfig.in_cluster(tmp_path, environment)) as inside:
        assert inside.access.namespace == namespace
        assert (await whoami(inside)).username == f"system:serviceaccount:{namespace}:default"
        (tmp_path / "token").write_text(await token(client, namespace, "next"))
        assert (await whoami(inside)).username == f"system:serviceaccount:{namespace}:next"


async def test_refused_token_is_reread_and_the_call_retried(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    """Even if the file changed with the same size and modification time."""
    path = tmp_path / "token"
    good = await token(client, namespace, "default")
    path.write_text("x" * len(good))
    async with Client(access(cluster, tmp_path, {"tokenFile": "token"})) as token_client:
        with pytest.raises(Unauthorized):
            await whoami(token_client)
        before = path.stat()
        path.write_text(good)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert (await whoami(token_client)).username == f"system:serviceaccount:{namespace}:default"
        with pytest.raises(Forbidden):
            await token_client.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)


async def test_client_certificate_files_are_reloaded(cluster: ControlPlane, tmp_path: Path) -> None:
    signed(cluster, "alice").write(tmp_path, "me")
    user = {"client-certificate": "me.crt", "client-key": "me.key"}
    async with Client(access(cluster, tmp_path, user)) as client:
        assert (await whoami(client)).username == "alice"
        signed(cluster, "bob").write(tmp_path, "me")
        assert (await whoami(client)).username == "bob"
        (tmp_path / "me.crt").write_text("half a certif")
        assert (await whoami(client)).username == "bob"


async def test_ca_file_is_reloaded(cluster: ControlPlane, tmp_path: Path) -> None:
    stranger = LabAuthority.create("another", dt.datetime.now(dt.UTC)).pair.certificate_pem
    (tmp_path / "ca").write_bytes(stranger)
    settings = access(cluster, tmp_path, {}, **{"certificate-authority": "ca"})
    async with Client(settings) as client:
        with pytest.raises(Untrusted, match=r"certificate verify failed.*check certificate-authority"):
            await client.version()
        (tmp_path / "ca").write_bytes(stranger + cluster.ca_path.read_bytes())
        assert (await client.version()).startswith("v1.")


async def test_tls_server_name_is_verified(cluster: ControlPlane, tmp_path: Path) -> None:
    async with Client(access(cluster, tmp_path, {}, **{"tls-server-name": "kubernetes.default.svc"})) as client:
        await client.version()
    async with Client(access(cluster, tmp_path, {}, **{"tls-server-name": "elsewhere"})) as client:
        with pytest.raises(Untrusted, match="elsewhere"):
            await client.version()


async def test_insecure_skip_tls_verify_connects(cluster: ControlPlane, tmp_path: Path) -> None:
    settings = access(cluster, tmp_path, {}, **{"certificate-authority": "", "insecure-skip-tls-verify": True})
    async with Client(settings) as client:
        await client.version()


def exec_user(folder: Path, script: str) -> dict[str, Any]:
    path = folder / "plugin"
    path.write_text(f"#!/bin/sh\ncd {folder}\necho run >> runs\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return {"exec": {"apiVersion": V1, "command": "./plugin", "interactiveMode": "Never"}}


def exec_output(folder: Path, **status: str) -> None:
    (folder / "output").write_text(json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": status}))


def runs(folder: Path) -> int:
    return len((folder / "runs").read_text().splitlines())


async def test_exec_plugin_token_is_used_until_it_expires(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "next"}}, namespace)
    expires = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=5)
    exec_output(tmp_path, token=await token(client, namespace, "default"), expirationTimestamp=expires.isoformat())
    async with Client(access(cluster, tmp_path, exec_user(tmp_path, "cat output"))) as token_client:
        assert (await whoami(token_client)).username == f"system:serviceaccount:{namespace}:default"
        exec_output(tmp_path, token=await token(client, namespace, "next"))

        async def is_next() -> bool:
            return (await whoami(token_client)).username == f"system:serviceaccount:{namespace}:next"

        await eventually(is_next)
        assert await is_next()
    assert runs(tmp_path) == 2


async def test_exec_plugin_is_run_again_after_a_401(
    cluster: ControlPlane, client: Client, namespace: str, tmp_path: Path
) -> None:
    exec_output(tmp_path, token="stale")
    script = "cat output; mv fresh output 2>/dev/null || true"
    async with Client(access(cluster, tmp_path, exec_user(tmp_path, script))) as token_client:
        fresh = {"token": await token(client, namespace, "default")}
        (tmp_path / "fresh").write_text(json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": fresh}))
        assert (await whoami(token_client)).username == f"system:serviceaccount:{namespace}:default"
    assert runs(tmp_path) == 2


async def test_exec_plugin_certificates_are_used(cluster: ControlPlane, tmp_path: Path) -> None:
    def set_certificate(user: str, **rest: str) -> None:
        pair = signed(cluster, user)
        exec_output(
            tmp_path,
            clientCertificateData=pair.certificate_pem.decode(),
            clientKeyData=pair.key_pem.decode(),
            **rest,
        )

    set_certificate("alice", expirationTimestamp="2000-01-01T00:00:00Z")
    async with Client(access(cluster, tmp_path, exec_user(tmp_path, "cat output"))) as client:
        assert (await whoami(client)).username == "alice"
        set_certificate("bob")
        assert (await whoami(client)).username == "bob"


async def test_hanging_exec_plugin_ends_at_the_deadline(cluster: ControlPlane, tmp_path: Path) -> None:
    async with Client(access(cluster, tmp_path, exec_user(tmp_path, "exec sleep 600"))) as client:
        with pytest.raises(DeadlineExceeded, match=r"no answer within 0.5 s"):
            await whoami(client, deadline_seconds=0.5)


async def test_missing_exec_plugin_is_a_one_line_error(cluster: ControlPlane, tmp_path: Path) -> None:
    user = {"exec": {"apiVersion": V1, "command": "./none", "interactiveMode": "Never", "installHint": "make install"}}
    async with Client(access(cluster, tmp_path, user)) as client:
        with pytest.raises(Unauthorized, match="none' cannot be started: No such file or directory; make install"):
            await client.version()
