"""Which texts are hidden as caller keys."""

from __future__ import annotations

import pytest

from zonewise.redaction import hide_caller_keys

KEY = "0123456789abcdef" * 4


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (f"https://10.0.0.5:8443/evictions/{KEY}?timeout=5s", "https://10.0.0.5:8443/evictions/...?timeout=5s"),
        (f"path: /slices/{KEY}\nport: 443", "path: /slices/...\nport: 443"),
        (f"image@sha256:{KEY}", f"image@sha256:{KEY}"),
        (f"/slices/{KEY}0", f"/slices/{KEY}0"),
    ],
    ids=["url", "yaml", "digest", "longer"],
)
def test_only_keys_in_paths_are_hidden(text: str, shown: str) -> None:
    assert hide_caller_keys(text) == shown
