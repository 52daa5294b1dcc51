from pathlib import Path

import pytest

from zonewise.lab import paths

CASES = {
    "ZONEWISE_CACHE wins": ({"ZONEWISE_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
    "XDG_CACHE_HOME": ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/zonewise"),
    "empty counts as unset": ({"ZONEWISE_CACHE": "", "XDG_CACHE_HOME": ""}, str(Path.home() / ".cache/zonewise")),
    "home": ({}, str(Path.home() / ".cache/zonewise")),
}


@pytest.mark.parametrize(("environ", "expected"), CASES.values(), ids=CASES.keys())
def test_cache_root_follows_the_environment(environ: dict[str, str], expected: str) -> None:
    assert paths.cache_root(environ) == Path(expected)


def test_state_root_is_separate_from_the_cache() -> None:
    assert paths.state_root({}) == Path.home() / ".local/state/zonewise"
    assert paths.state_root({"ZONEWISE_STATE": "relative"}) == Path.cwd() / "relative"
