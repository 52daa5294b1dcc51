"""A manifest as a document, and the identity of its object. Pure."""

from __future__ import annotations

from typing import Any

Document = dict[str, Any]


def identity(document: Document) -> tuple[str, str, str]:
    """Kind, namespace and name."""
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]
