"""Kubeconfig files of a lab: one per user, with the client certificate inside."""

import base64
from pathlib import Path

import msgspec

from zonewise.lab.controlplane.pki import KeyPair
from zonewise.lab.records import write_private

NAME = "lab"


def write(path: Path, server: str, authority_pem: bytes, user: str, pair: KeyPair) -> None:
    """JSON is YAML: every client reads it, and writing it needs no YAML library."""
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": NAME, "cluster": {"server": server, "certificate-authority-data": _base64(authority_pem)}}
        ],
        "users": [
            {
                "name": user,
                "user": {
                    "client-certificate-data": _base64(pair.certificate_pem),
                    "client-key-data": _base64(pair.key_pem),
                },
            }
        ],
        "contexts": [{"name": NAME, "context": {"cluster": NAME, "user": user}}],
        "current-context": NAME,
    }
    write_private(path, msgspec.json.format(msgspec.json.encode(document), indent=2))


def _base64(content: bytes) -> str:
    return base64.b64encode(content).decode()
