"""Crash points: named steps of storage operations, at which tests kill the process as with SIGKILL.

`ZONEWISE_CSI_CRASH=create.reserved` kills the process at that step; `create.reserved:3` the third time. Without the
variable `crash_if_armed` does nothing. After a crash at any step a retry of the same call must finish the work, with
nothing left over.
"""

import os
import signal
import threading
from enum import StrEnum


class CrashPoint(StrEnum):
    CREATE_RESERVED = "create.reserved"  # the name is in the journal, nothing else exists
    CREATE_MADE = "create.made"  # the image exists, the journal entry is still reserved
    CREATE_RECORDED = "create.recorded"  # done, but not answered

    COPY_SNAPPED = "copy.snapped"  # the source has a snapshot for the copy
    COPY_BEGUN = "copy.begun"  # CephFS: the manager copies in the background
    COPY_CLONED = "copy.cloned"  # the copy exists and depends on its source
    COPY_DETACHED = "copy.detached"  # it is independent of its source
    COPY_GROWN = "copy.grown"
    COPY_CLEARED = "copy.cleared"  # the source's temporary snapshot is removed

    DELETE_MARKED = "delete.marked"
    DELETE_REMOVED = "delete.removed"  # the image is removed, the journal entry exists
    DELETE_FORGOTTEN = "delete.forgotten"
    PURGE_CLAIMED = "purge.claimed"  # the parent in the trash is claimed, not removed
    PURGE_REMOVED = "purge.removed"  # the parent is removed

    EXPAND_GROWN = "expand.grown"
    EXPAND_RECORDED = "expand.recorded"

    STAGE_NOTED = "stage.noted"  # the stage record is written
    STAGE_SPAWNED = "stage.spawned"  # the volume's daemon is started, maybe not ready
    STAGE_MAPPED = "stage.mapped"
    STAGE_FORMATTING = "stage.formatting"  # the image is marked as being formatted
    STAGE_FORMATTED = "stage.formatted"  # it has a file system and is still marked
    STAGE_MOUNTED = "stage.mounted"
    PUBLISH_NOTED = "publish.noted"
    UNPUBLISH_UNMOUNTED = "unpublish.unmounted"
    UNSTAGE_UNMOUNTED = "unstage.unmounted"
    UNSTAGE_UNMAPPED = "unstage.unmapped"


_lock = threading.Lock()
_armed, _left = "", 0


def arm(text: str) -> None:
    """Crash at this step; `create.reserved:3` the third time; never if empty."""
    global _armed, _left  # noqa: PLW0603 - per process, for tests only
    _armed, _, times = text.partition(":")
    _left = int(times or 1)


def crash_if_armed(step: CrashPoint) -> None:
    global _left  # noqa: PLW0603
    if step != _armed:
        return
    with _lock:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


arm(os.environ.get("ZONEWISE_CSI_CRASH", ""))
