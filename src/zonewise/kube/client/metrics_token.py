"""Tokens for our own metrics: from a file that the kubelet renews, or requested from the API server.

They are for metrics only (their audience says so): a stranger who is sent one can do nothing else with it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Final

import msgspec

from zonewise.api.names import METRICS_AUDIENCE, METRICS_READER
from zonewise.kube.client.client import Client
from zonewise.kube.client.watched_file import WatchedFile
from zonewise.kube.wire.errors import ApiError, ConfigError
from zonewise.log import get_logger
from zonewise.objects import SERVICE_ACCOUNTS

_VALID_SECONDS: Final = 3600
_RENEW_SECONDS: Final = 600.0
_RETRY_SECONDS: Final = 60.0

_log = get_logger(__name__)

TokenSource = Callable[[], Awaitable[str]]
"""The token to send now; empty if there is none."""


async def request_token(client: Client, namespace: str) -> str:
    """Of the service account for metrics in that namespace. Needs `create` of `serviceaccounts/token`."""
    spec = {"audiences": [METRICS_AUDIENCE], "expirationSeconds": _VALID_SECONDS}
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    path = SERVICE_ACCOUNTS.path(namespace, METRICS_READER, "token")
    answer = await client.request("POST", path, body=msgspec.json.encode(body))
    return str(msgspec.json.decode(answer)["status"]["token"])


def from_file(path: Path) -> TokenSource:
    file = WatchedFile(path)

    async def current() -> str:
        try:
            return file.content().decode().strip()
        except ConfigError as error:
            _log.warning("no token for metrics", error=str(error))
            return ""

    return current


def from_api_server(client: Client, namespace: str) -> TokenSource:
    token, due = "", 0.0

    async def current() -> str:
        nonlocal token, due
        if time.monotonic() >= due:
            try:
                token, due = await request_token(client, namespace), time.monotonic() + _RENEW_SECONDS
            except ApiError as error:
                _log.info("no token for metrics", error=str(error))
                due = time.monotonic() + _RETRY_SECONDS
        return token

    return current
