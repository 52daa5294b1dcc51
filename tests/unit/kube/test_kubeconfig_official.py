"""Kubeconfig loading compared with the official client on the same files.

Where the official Python client and kubectl differ we follow kubectl, and the files here steer clear of it: a token
next to a tokenFile, a current-context in several files, line ends in token files, secrets over plain HTTP, and relative
certificate paths of a user whose cluster stands in another file.
"""

import asyncio
import base64
import json
import stat
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kubernetes.client
import kubernetes.config
import pytest
import trustme
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from kubernetes.config.incluster_config import InClusterConfigLoader

from zonewise.kube.client import kubeconfig
from zonewise.kube.client.credentials import credentials_of
from zonewise.kube.client.watched_file import content_of, source_of
from zonewise.kube.wire.access import ClusterAccess


@dataclass(frozen=True)
class Reading:
    """Values of a context that both clients read."""

    server: str
    authority: bytes
    verify: bool
    tls_server_name: str
    proxy: str
    authorization: str
    certificate: bytes
    key: bytes


def our_reading(access: ClusterAccess) -> Reading:
    identity = asyncio.run(credentials_of(access.credential).current())
    own = access.certificate
    return Reading(
        server=access.server,
        authority=content_of(source_of(access.authority)),
        verify=access.verify,
        tls_server_name=access.tls_server_name,
        proxy=access.proxy_url,
        authorization=identity.authorization,
        certificate=content_of(source_of(own.certificate if own else None)),
        key=content_of(source_of(own.key if own else None)),
    )


def official_reading(files: str, context: str) -> Reading:
    read = kubernetes.client.Configuration()
    kubernetes.config.load_kube_config(files, context, client_configuration=read, persist_config=False)
    return Reading(
        server=read.host,
        authority=_file(read.ssl_ca_cert),
        verify=read.verify_ssl,
        tls_server_name=read.tls_server_name or "",
        proxy=read.proxy or "",
        authorization=read.api_key.get("BearerToken", ""),
        certificate=_file(read.cert_file),
        key=_file(read.key_file),
    )


def _file(path: str | None) -> bytes:
    return Path(path).read_bytes() if path else b""


names = st.text("abcdefghij", min_size=1, max_size=4)
secrets = st.text("ABCdef012-._~", min_size=1, max_size=20)
LOCATIONS = ("", "pki/", "{root}/")
"""File location: beside the kubeconfig, below it, or absolute."""
contents = st.binary(min_size=1, max_size=40).map(base64.b64encode)


@st.composite
def material(
    draw: st.DrawFn, field: str, files: dict[str, bytes], locations: tuple[str, ...] = LOCATIONS
) -> dict[str, str]:
    """Inline data or a file."""
    content = draw(contents)
    if draw(st.booleans()):
        return {f"{field}-data": base64.b64encode(content).decode()}
    name = draw(st.sampled_from(locations)) + f"{field}-{len(files)}"
    files[name] = content
    return {field: name}


@st.composite
def clusters(draw: st.DrawFn, files: dict[str, bytes]) -> dict[str, Any]:
    host = draw(
        st.sampled_from(["https://api:6443", "https://10.0.0.1", "https://[fd00::1]:6443", "https://api/k8s/c/"])
    )
    cluster: dict[str, Any] = {"server": host}
    match draw(st.sampled_from(["system", "own", "insecure"])):
        case "own":
            cluster |= draw(material("certificate-authority", files))
        case "insecure":
            cluster["insecure-skip-tls-verify"] = True
        case _:
            cluster |= draw(st.sampled_from([{}, {"insecure-skip-tls-verify": False}]))
    if draw(st.booleans()):
        cluster["tls-server-name"] = draw(names)
    if draw(st.booleans()):
        cluster["proxy-url"] = f"http://{draw(names)}:3128"
    return cluster


@st.composite
def users(draw: st.DrawFn, files: dict[str, bytes], locations: tuple[str, ...]) -> dict[str, Any]:
    user: dict[str, Any] = {}
    match draw(st.sampled_from(["none", "token", "file", "password"])):
        case "token":
            user["token"] = draw(secrets)
        case "file":
            name = f"token-{len(files)}"
            files[name] = draw(secrets).encode()
            user["tokenFile"] = name
        case "password":
            user |= {"username": draw(secrets), "password": draw(secrets)}
        case _:
            pass
    if draw(st.booleans()):
        user |= draw(material("client-certificate", files, locations)) | draw(material("client-key", files, locations))
    return user


@st.composite
def kubeconfigs(draw: st.DrawFn) -> list[tuple[dict[str, Any], dict[str, bytes]]]:
    """One to three files; names may repeat between them."""
    configs = []
    count = draw(st.integers(1, 3))
    locations = LOCATIONS if count == 1 else ("{root}/",)
    for _ in range(count):
        files: dict[str, bytes] = {}
        named = {name: draw(clusters(files)) for name in draw(st.lists(names, unique=True, min_size=1, max_size=2))}
        people = {
            name: draw(users(files, locations)) for name in draw(st.lists(names, unique=True, min_size=1, max_size=2))
        }
        contexts = {
            name: {"cluster": draw(st.sampled_from([*named])), "user": draw(st.sampled_from([*people]))}
            for name in draw(st.lists(names, unique=True, min_size=1, max_size=3))
        }
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": name, "cluster": cluster} for name, cluster in named.items()],
            "users": [{"name": name, "user": user} for name, user in people.items()],
            "contexts": [{"name": name, "context": context} for name, context in contexts.items()],
        }
        configs.append((document, files))
    return configs


def write(root: Path, documents: list[tuple[dict[str, Any], dict[str, bytes]]]) -> str:
    """Write each kubeconfig to its own directory, with the files it names."""
    paths = []
    for number, (document, files) in enumerate(documents):
        folder = root / f"at-{number}"
        (folder / "pki").mkdir(parents=True)
        for name, content in files.items():
            (folder / name.format(root=folder)).write_bytes(content)
        text = yaml.safe_dump(document).replace("{root}", str(folder))
        paths.append(folder / "config")
        paths[-1].write_text(text)
    return ":".join(map(str, paths))


@settings(deadline=None, max_examples=25)
@given(kubeconfigs())
def test_generated_files_are_read_like_the_official_client(
    documents: list[tuple[dict[str, Any], dict[str, bytes]]],
) -> None:
    with tempfile.TemporaryDirectory() as root:
        files = write(Path(root), documents)
        for context in {item["name"] for document, _ in documents for item in document["contexts"]}:
            assert our_reading(kubeconfig.load(context=context, environment={"KUBECONFIG": files})) == official_reading(
                files, context
            )


def exec_config(folder: Path, api_version: str, status: dict[str, str]) -> Path:
    plugin = folder / "plugin"
    credential = {"apiVersion": api_version, "kind": "ExecCredential", "status": status}
    plugin.write_text(f"#!/bin/sh\ncat <<'EOF'\n{json.dumps(credential)}\nEOF\n")
    plugin.chmod(plugin.stat().st_mode | stat.S_IXUSR)
    user = {"exec": {"apiVersion": api_version, "command": "./plugin", "interactiveMode": "Never"}}
    config = {
        "current-context": "it",
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443"}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
    }
    (folder / "config").write_text(yaml.safe_dump(config))
    return folder / "config"


@pytest.mark.parametrize("version", ["v1", "v1beta1"])
def test_exec_plugin_token_is_read_like_the_official_client(tmp_path: Path, version: str) -> None:
    path = exec_config(tmp_path, f"client.authentication.k8s.io/{version}", {"token": "from-plugin"})
    assert our_reading(kubeconfig.load(path)) == official_reading(str(path), "it")
    assert our_reading(kubeconfig.load(path)).authorization == "Bearer from-plugin"


def test_exec_plugin_certificate_is_read_like_the_official_client(tmp_path: Path) -> None:
    issued = trustme.CA().issue_cert("me@example.com")
    certificate, key = issued.cert_chain_pems[0].bytes().decode(), issued.private_key_pem.bytes().decode()
    status = {"clientCertificateData": certificate, "clientKeyData": key}
    path = exec_config(tmp_path, "client.authentication.k8s.io/v1", status)
    official = official_reading(str(path), "it")
    identity = asyncio.run(credentials_of(kubeconfig.load(path).credential).current())
    assert identity.certificate == official.certificate + b"\n" + official.key
    assert identity.authorization == official.authorization == ""


@pytest.mark.parametrize("host", ["10.96.0.1", "fd00::1"])
def test_in_cluster_config_is_read_like_the_official_client(tmp_path: Path, host: str) -> None:
    (tmp_path / "token").write_text("t0k3n")
    (tmp_path / "ca.crt").write_text("pem")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "443"}
    official = kubernetes.client.Configuration()
    loader = InClusterConfigLoader(str(tmp_path / "token"), str(tmp_path / "ca.crt"), environ=environment)
    loader.load_and_set(official)

    reading = our_reading(kubeconfig.in_cluster(tmp_path, environment))
    assert reading.server == official.host
    assert reading.authority == _file(official.ssl_ca_cert)
    assert reading.authorization.lower() == official.api_key["BearerToken"].lower()
