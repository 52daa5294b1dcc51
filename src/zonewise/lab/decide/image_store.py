"""Image store of nodes: a containerd root that holds images only, which nodes share but for its databases. Pure.

Content and snapshots of images are never written: a container's changes go to a directory of its own, over them. So the root
of a node's containerd has copies of the two databases, and links to each blob and each snapshot in the store.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Final

_FORMAT: Final = "1"
"""Of a store's directory: another one is another key."""
DATABASES: Final = ("io.containerd.metadata.v1.bolt/meta.db", "io.containerd.snapshotter.v1.overlayfs/metadata.db")
SHARED: Final = ("io.containerd.content.v1.content/blobs/sha256", "io.containerd.snapshotter.v1.overlayfs/snapshots")
"""Directories, each entry of which is linked to."""
KEPT: Final = 3
"""Stores: of a lab without images of its own, with Zonewise, and with Ceph too."""


def key(runtime: str, archives: Iterable[str]) -> str:
    """Name of the store that this build of containerd makes from archives with these digests."""
    return hashlib.sha256("\n".join([_FORMAT, runtime, *sorted(archives)]).encode()).hexdigest()[:16]


def surplus(last_use: Mapping[str, float], kept: int = KEPT) -> list[str]:
    """Stores to remove, the one unused for longest first. `last_use` is a time by key."""
    return sorted(last_use, key=lambda store: last_use[store])[: max(0, len(last_use) - kept)]
