"""Every command that prints JSON has its struct in the one table, and every struct has fields to document."""

from __future__ import annotations

import click
import pytest

from unit.cli.test_errors import leaves
from zonewise.cli import schemas
from zonewise.cli.main import cli

ELSEWHERE = {"install"}
"""Prints Kubernetes objects."""


def test_every_json_is_described() -> None:
    printing = {
        name
        for name, command in leaves(cli)
        for parameter in command.params
        if "--output" in parameter.opts
        and isinstance(parameter.type, click.Choice)
        and "json" in parameter.type.choices
    }
    assert printing - ELSEWHERE == set(schemas.ACCOUNTS)


@pytest.mark.parametrize("name", schemas.ACCOUNTS)
def test_fields_have_names_and_types(name: str) -> None:
    found = list(schemas.fields(name))
    assert found
    assert all(field.path.startswith((".", "[")) and field.type for field in found)
    assert len({field.path for field in found}) == len(found)
    assert not [field.path for field in found if "_" in field.path], "names are in camelCase everywhere"
