"""The moments between two steps of a storage operation, by name: where a test lets the process die as by SIGKILL.

`ZONEWISE_CSI_CRASH=create.reserved` kills the process when it comes to that step; `create.reserved:3` the third time. Without the
variable, `reach` does nothing. After a death at any step a retry of the same call must finish the work, and nothing may be left over.
"""

import os
import signal
import threading
from enum import StrEnum


class Step(StrEnum):
    CREATE_RESERVED = "create.reserved"  # the name is in the journal, nothing else exists
    CREATE_MADE = "create.made"  # the image is there, the journal does not say so
    CREATE_RECORDED = "create.recorded"  # all is done, nobody has been told

    COPY_SNAPPED = "copy.snapped"  # the source has a snapshot for the copy
    COPY_CLONED = "copy.cloned"  # the copy is there and depends on its source
    COPY_DETACHED = "copy.detached"  # it no longer does
    COPY_GROWN = "copy.grown"
    COPY_CLEARED = "copy.cleared"  # the source's snapshot is gone

    DELETE_MARKED = "delete.marked"
    DELETE_REMOVED = "delete.removed"  # the image is gone, the journal has its entry
    DELETE_FORGOTTEN = "delete.forgotten"

    EXPAND_GROWN = "expand.grown"
    EXPAND_RECORDED = "expand.recorded"


_COUNT = threading.Lock()
_NAME, _, _TIMES = os.environ.get("ZONEWISE_CSI_CRASH", "").partition(":")
_left = int(_TIMES or 1)


def reach(step: Step) -> None:
    global _left  # noqa: PLW0603 - of this process, for tests only
    if step != _NAME:
        return
    with _COUNT:
        _left -= 1
        if _left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
