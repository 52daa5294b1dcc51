from pathlib import Path

import pytest

from zonewise.lab import paths

CASES = {
    "our own variable wins": ({"ZONEWISE_CACHE": "/own", "XDG_CACHE_HOME": "/xdg"}, "/own"),
    "the desktop's is shared": ({"XDG_CACHE_HOME": "/xdg"}, "/xdg/zonewise"),
    "empty counts as unset": ({"ZONEWISE_CACHE": "", "XDG_CACHE_HOME": ""}, str(Path.home() / ".cache/zonewise")),
    "home": ({}, str(Path.home() / ".cache/zonewise")),
}


@pytest.mark.parametrize(("environ", "expected"), CASES.values(), ids=CASES.keys())
def test_cache_root(environ: dict[str, str], expected: str) -> None:
    assert paths.cache_root(environ) == Path(expected)


def test_state_is_apart_from_the_cache() -> None:
    assert paths.state_root({}) == Path.home() / ".local/state/zonewise"
    assert paths.state_root({"ZONEWISE_STATE": "relative"}) == Path.cwd() / "relative"
