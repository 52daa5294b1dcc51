"""Kubeconfigs in JSON and YAML: what they mean, or an error of one line."""

from __future__ import annotations

import json
from pathlib import Path

import yaml

from zonewise.kube.client import kubeconfig
from zonewise.kube.wire.errors import ConfigError
from zonewise.kube.wire.kubeconfig_file import parse

CERTIFICATE = "LS0tLS1CRUdJTg=="
SEED = {
    "apiVersion": "v1",
    "kind": "Config",
    "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", "certificate-authority-data": CERTIFICATE, "proxy-url": "http://p:1", "tls-server-name": "k", "insecure-skip-tls-verify": False}}],
    "users": [{"name": "u", "user": {"token": "t", "client-certificate-data": CERTIFICATE, "client-key-data": CERTIFICATE, "as": "x", "as-groups": ["g"], "as-user-extra": {"k": ["v"]}, "exec": {"apiVersion": "client.authentication.k8s.io/v1", "command": "x", "args": ["a"], "env": [{"name": "A", "value": "b"}], "interactiveMode": "Never"}}}],
    "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
    "current-context": "x",
}  # fmt: skip
SEEDS = [
    json.dumps(SEED).encode(),
    yaml.safe_dump(SEED).encode(),
    json.dumps({**SEED, "users": [{"name": "u", "user": {"username": "a", "password": "b"}}]}).encode(),
]
WORDS = (
    *SEED, *SEED["clusters"][0]["cluster"], *SEED["users"][0]["user"], *SEED["users"][0]["user"]["exec"], "username", "password", "tokenFile", "http://x", "https://[::1]:6443",
    "https://", "https://[", "https://h:99999", "https://h:x", "http://u:p@h:1", "socks5://p", "client-certificate", "provideClusterInfo", CERTIFICATE, "AAAA", "extensions", "auth-provider", "IfAvailable", "Always",
)  # fmt: skip


def check(data: bytes) -> None:
    """As JSON, which is what mutation makes, and in one of YAML's styles."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    texts = [text]
    try:
        document = json.loads(text)
        if len(data) % 8 < 2:  # it takes ten times as long
            texts.append(yaml.dump(document, Dumper=yaml.CSafeDumper, default_flow_style=len(data) % 2 == 1))
    except (ValueError, RecursionError, yaml.YAMLError):
        pass
    for one in texts:
        try:
            file = parse(one, Path("/k/config"))
            kubeconfig.interpret(kubeconfig.merge([(Path("/k/config"), file)]), None, {})
        except ConfigError as error:
            assert "\n" not in str(error)
