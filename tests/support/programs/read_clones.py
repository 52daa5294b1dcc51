"""Opens clones and closes them at once, in several threads of one process: `read_clones CONF POOL HOW SECONDS`.

HOW is `reading`, as the driver does it, or a way without its care: `bare`, `own` (a connection per thread), `keep` (another
handle stays open), `lock` (one thread at a time), `single` (librados with one thread), `writable`. Prints the number of opens. A process that
librbd aborts exits with SIGABRT.
"""

import faulthandler
import os
import sys
import threading
import time
from contextlib import nullcontext
from typing import Any

import rados
import rbd

from zonewise.ceph.backend.librbd import reading

THREADS = 4
FEATURES = 61  # Ceph's default; the object map is what matters


def connect(conf: str, how: str) -> Any:
    options = {"rbd_default_clone_format": "2", "librados_thread_count": "1" if how == "single" else "2"}
    handle = rados.Rados(conffile=conf, conf=options)
    handle.connect()
    return handle


def clone(io: Any, name: str) -> str:
    library = rbd.RBD()
    library.create(io, name, 4 << 20, old_format=False, features=FEATURES)
    with rbd.Image(io, name) as image:
        image.create_snap("copied")
    library.clone(io, name, "copied", io, f"{name}-clone", features=FEATURES)
    return f"{name}-clone"


def main(conf: str, pool: str, how: str, seconds: float) -> None:
    faulthandler.enable()
    shared = connect(conf, how)
    deadline = time.monotonic() + seconds
    turn: Any = threading.Lock() if how == "lock" else nullcontext()
    opens = [0] * THREADS

    def work(number: int) -> None:
        io = (connect(conf, how) if how == "own" else shared).open_ioctx(pool)
        name = clone(io, f"read-{os.getpid()}-{number}")
        kept = rbd.Image(io, name, read_only=True) if how == "keep" else None
        while time.monotonic() < deadline:
            with (
                turn,
                reading(io, name) if how == "reading" else rbd.Image(io, name, read_only=how != "writable") as image,
            ):
                image.size()
            opens[number] += 1
        if kept is not None:
            kept.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(sum(opens))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], float(sys.argv[4]))
