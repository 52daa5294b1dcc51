"""Differences as text: what the server writes and what is secret is left out."""

from zonewise.install.decide.diff import difference


def test_key_of_a_webhooks_caller_is_not_shown() -> None:
    def live(port: int) -> dict[str, object]:
        service = {"path": f"/evictions/{'ab' * 32}", "port": port}
        return {"metadata": {"name": "x"}, "webhooks": [{"clientConfig": {"service": service}}]}

    text = difference("x", live(443), live(444))
    assert "path: /evictions/..." in text
    assert "ab" * 32 not in text
