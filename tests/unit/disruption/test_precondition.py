"""Preconditions that the guard adds to an eviction, whatever delete options the eviction has."""

from typing import Any

import pytest

from zonewise.disruption.webhook.guard import _preconditions
from zonewise.objects.policy import DeleteOptions, Preconditions

UID, BOTH = {"uid": "u", "resourceVersion": ""}, {"uid": "u", "resourceVersion": "9"}
AT_7 = DeleteOptions(preconditions=Preconditions(resource_version="7"))
OF_U = DeleteOptions(preconditions=Preconditions(uid="u"))
WHERE = "/deleteOptions/preconditions"

CASES: dict[str, tuple[dict[str, str], DeleteOptions | None, dict[str, Any]]] = {
    "no options": (UID, None, {"/deleteOptions": {"preconditions": {"uid": "u"}}}),
    "no options, exact": (BOTH, None, {"/deleteOptions": {"preconditions": {"uid": "u", "resourceVersion": "9"}}}),
    "no preconditions": (UID, DeleteOptions(grace_period_seconds=0), {WHERE: {"uid": "u"}}),
    "another precondition": (UID, AT_7, {f"{WHERE}/uid": "u"}),
    "a version of its own stays": (BOTH, AT_7, {f"{WHERE}/uid": "u"}),
    "an empty uid": (UID, DeleteOptions(preconditions=Preconditions(uid="")), {f"{WHERE}/uid": "u"}),
    "its own uid, exact": ({"uid": "", "resourceVersion": "9"}, OF_U, {f"{WHERE}/resourceVersion": "9"}),
    "its own uid": ({"uid": "", "resourceVersion": ""}, OF_U, {}),
}


@pytest.mark.parametrize(("conditions", "options", "added"), CASES.values(), ids=CASES)
def test_preconditions_are_added_beside_what_is_there(
    conditions: dict[str, str], options: DeleteOptions | None, added: dict[str, Any]
) -> None:
    patch = _preconditions(conditions, options)
    assert {operation["path"]: operation["value"] for operation in patch} == added
    assert all(operation["op"] == "add" for operation in patch)
