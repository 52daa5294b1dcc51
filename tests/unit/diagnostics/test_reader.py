"""The reader of diagnostics: what it does about denied and undefined kinds, and how often it sends a request."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.errors import ZonewiseError
from zonewise.kube.wire.errors import Forbidden, NotFound, Unreachable
from zonewise.objects import NODES, PODS, Resource
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS


class FakeClient:
    """Answers every request for a kind with the same items, or with an error."""

    def __init__(self, answers: dict[Resource[Any], Any]) -> None:
        self.answers = answers
        self.requests: list[tuple[Any, ...]] = []

    async def list(self, resource: Resource[Any], namespace: str, *, selector: str, fields: str) -> Any:
        self.requests.append((resource, namespace, selector, fields))
        return SimpleNamespace(items=await self._answer(resource))

    async def get(self, resource: Resource[Any], name: str, namespace: str) -> Any:
        self.requests.append((resource, namespace, name))
        return await self._answer(resource)

    async def _answer(self, resource: Resource[Any]) -> Any:
        await asyncio.sleep(0)
        answer = self.answers[resource]
        if isinstance(answer, Exception):
            raise answer
        return answer


def reader_of(**answers: Any) -> tuple[ClusterReader, FakeClient]:
    kinds: dict[str, Resource[Any]] = {"nodes": NODES, "pods": PODS, "budgets": TOPOLOGY_DISRUPTION_BUDGETS}
    client: Any = FakeClient({kinds[name]: answer for name, answer in answers.items()})
    return ClusterReader(client), client


async def test_concurrent_and_later_callers_share_one_request() -> None:
    reader, client = reader_of(nodes=["n"])
    lists = await asyncio.gather(reader.list(NODES), reader.list_or_empty(NODES), reader.list(NODES))
    assert [*lists, await reader.list(NODES)] == [["n"]] * 4
    assert client.requests == [(NODES, "", "", "")]


async def test_requests_that_differ_in_selection_are_sent_each() -> None:
    reader, client = reader_of(pods=[])
    await reader.list(PODS, "shop")
    await reader.list(PODS, "shop", selector="app=web")
    await reader.list_named(PODS, ["a", "b"])
    assert client.requests == [
        (PODS, "shop", "", ""),
        (PODS, "shop", "app=web", ""),
        (PODS, "", "", "metadata.name=a"),
        (PODS, "", "", "metadata.name=b"),
    ]


async def test_a_denied_optional_read_is_empty_and_recorded_once() -> None:
    reader, _ = reader_of(pods=Forbidden("not for you"))
    assert await reader.list_or_empty(PODS) == ()
    assert await reader.get_or_none(PODS, "web", "shop") is None
    assert reader.unread == ["pods: not for you"]
    assert reader.is_forbidden(PODS)
    assert reader.is_forbidden(PODS, "web", "shop")
    assert not reader.is_forbidden(PODS, "db", "shop")
    assert reader.is_defined(PODS) is None


async def test_a_kind_without_definition_is_empty_and_no_denial() -> None:
    reader, _ = reader_of(budgets=NotFound("no such kind"), nodes=[])
    assert await reader.list_or_empty(TOPOLOGY_DISRUPTION_BUDGETS) == ()
    assert await reader.list_or_empty(NODES) == []
    assert reader.unread == []
    assert reader.is_defined(TOPOLOGY_DISRUPTION_BUDGETS) is False
    assert reader.is_defined(NODES) is True


async def test_a_missing_object_raises_the_callers_sentence() -> None:
    reader, _ = reader_of(pods=NotFound("gone"))
    assert await reader.find(PODS, "web", "shop") is None
    with pytest.raises(ZonewiseError, match="no pod shop/web"):
        await reader.get(PODS, "web", "shop", missing="no pod shop/web")


@pytest.mark.parametrize("error", [Forbidden("not for you"), Unreachable("refused")])
async def test_required_reads_raise(error: Exception) -> None:
    reader, _ = reader_of(pods=error)
    for read in (reader.list(PODS), reader.find(PODS, "web"), reader.get(PODS, "web", missing="no pod")):
        with pytest.raises(type(error)):
            await read
    assert reader.unread == []


async def test_optional_reads_raise_where_the_server_is_away() -> None:
    reader, _ = reader_of(pods=Unreachable("refused"))
    with pytest.raises(Unreachable):
        await reader.list_or_empty(PODS)
