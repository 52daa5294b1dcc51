"""`zonewise install` and `uninstall`: options that can't be meant are refused before anything is asked of a cluster."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from zonewise.cli.main import cli
from zonewise.errors import UsageError


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["install", "-o", "yaml", "-n", "Zone_Wise"], "-n 'Zone_Wise' is no name of a namespace"),
        (["uninstall", "--yes", "-n", ""], "-n '' is no name of a namespace"),
        (["install", "-o", "yaml", "--image", ""], "--image '' is no name of an image"),
        (["install", "-o", "yaml", "--image", "a\nhostPID: true"], "is no name of an image"),
        (["install", "-o", "yaml", "--only", "prxy"], "no component 'prxy'"),
    ],
)
def test_option_without_sense_is_refused(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, arguments)
    assert isinstance(result.exception, UsageError)
    assert said in str(result.exception)
    assert result.output == ""
