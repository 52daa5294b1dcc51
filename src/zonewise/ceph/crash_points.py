"""The moments between two steps of a storage operation, by name: where a test lets the process die as by SIGKILL.

`ZONEWISE_CSI_CRASH=create.reserved` kills the process when it comes to that step; `create.reserved:3` the third time. Without the
variable, `reach` does nothing. After a death at any step a retry of the same call must finish the work, and nothing may be left over.
"""

import os
import signal
import threading
from enum import StrEnum


class CrashPoint(StrEnum):
    CREATE_RESERVED = "create.reserved"  # the name is in the journal, nothing else exists
    CREATE_MADE = "create.made"  # the image is there, the journal does not say so
    CREATE_RECORDED = "create.recorded"  # all is done, nobody has been told

    COPY_SNAPPED = "copy.snapped"  # the source has a snapshot for the copy
    COPY_BEGUN = "copy.begun"  # CephFS: the manager copies in the background
    COPY_CLONED = "copy.cloned"  # the copy is there and depends on its source
    COPY_DETACHED = "copy.detached"  # it no longer does
    COPY_GROWN = "copy.grown"
    COPY_CLEARED = "copy.cleared"  # the source's snapshot is gone

    DELETE_MARKED = "delete.marked"
    DELETE_REMOVED = "delete.removed"  # the image is gone, the journal has its entry
    DELETE_FORGOTTEN = "delete.forgotten"
    PURGE_CLAIMED = "purge.claimed"  # what was kept for the copy is ours to remove, and there
    PURGE_REMOVED = "purge.removed"  # it is gone, too

    EXPAND_GROWN = "expand.grown"
    EXPAND_RECORDED = "expand.recorded"

    STAGE_NOTED = "stage.noted"  # the node's record says what is intended
    STAGE_SPAWNED = "stage.spawned"  # a daemon for the volume has been started, and may not be ready
    STAGE_MAPPED = "stage.mapped"
    STAGE_FORMATTING = "stage.formatting"  # the image is marked as half formatted
    STAGE_FORMATTED = "stage.formatted"  # it has a file system, and is still marked
    STAGE_MOUNTED = "stage.mounted"
    PUBLISH_NOTED = "publish.noted"
    UNPUBLISH_UNMOUNTED = "unpublish.unmounted"
    UNSTAGE_UNMOUNTED = "unstage.unmounted"
    UNSTAGE_UNMAPPED = "unstage.unmapped"


_lock = threading.Lock()
_armed, _left = "", 0


def arm(text: str) -> None:
    """Die at this step, `create.reserved` or `create.reserved:3` for the third time; at none when it is empty."""
    global _armed, _left  # noqa: PLW0603 - of this process, for tests only
    _armed, _, times = text.partition(":")
    _left = int(times or 1)


def reach(step: CrashPoint) -> None:
    global _left  # noqa: PLW0603
    if step != _armed:
        return
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("ZONEWISE_CSI_CRASH", ""))
