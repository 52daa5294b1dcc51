"""Every command that prints JSON has a struct in the table, with fields to document."""

from __future__ import annotations

import click
import pytest

from unit.cli.test_errors import leaves
from zonewise.cli import schemas
from zonewise.cli.main import cli

WITHOUT_SCHEMA = {"install"}
"""Prints Kubernetes objects."""


def test_every_command_with_json_output_has_a_schema() -> None:
    printing = {
        name
        for name, command in leaves(cli)
        for parameter in command.params
        if "--output" in parameter.opts
        and isinstance(parameter.type, click.Choice)
        and "json" in parameter.type.choices
    }
    assert printing - WITHOUT_SCHEMA == set(schemas.STRUCTS)


@pytest.mark.parametrize("name", schemas.STRUCTS)
def test_schema_fields_have_unique_camel_case_paths(name: str) -> None:
    fields = list(schemas.fields(name))
    assert fields
    assert all(field.path.startswith((".", "[")) and field.type for field in fields)
    assert len({field.path for field in fields}) == len(fields)
    assert not [field.path for field in fields if "_" in field.path], "names are in camelCase everywhere"
