"""User info of a client as the API server sees it (SelfSubjectReview)."""

from __future__ import annotations

import msgspec

from zonewise.kube.client.client import Client

PATH = "/apis/authentication.k8s.io/v1/selfsubjectreviews"
REVIEW = b'{"apiVersion":"authentication.k8s.io/v1","kind":"SelfSubjectReview"}'


class _UserInfo(msgspec.Struct):
    username: str
    groups: list[str] = []
    uid: str = ""
    extra: dict[str, list[str]] = {}


class _Status(msgspec.Struct, rename="camel"):
    user_info: _UserInfo


class _Review(msgspec.Struct):
    status: _Status


async def whoami(client: Client, deadline_seconds: float = 30) -> _UserInfo:
    response = await client.request("POST", PATH, body=REVIEW, deadline_seconds=deadline_seconds)
    return msgspec.json.decode(response, type=_Review).status.user_info
