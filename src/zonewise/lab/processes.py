"""Processes of a lab: start, find again, signal, stop.

A process writes its own record (pid, start time, boot) before it becomes the program, so a lab whose `up` was
killed at any moment knows every process it owns. Signals go through a pidfd after the start time was compared:
a pid that the kernel has given to another process is never touched.
"""

import os
import secrets
import select
import signal
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

RECORDS = "run"
CLOSED_RECORDS = "run.closed"
LOGS = "log"

# $0 is the record, $1 the working directory. A shell reads /proc/self as itself and keeps pid and start time across exec.
# If the record can't be written (the lab has been removed) the program is not started.
_RECORD_THEN_EXEC = (
    'read -r stat </proc/self/stat && read -r boot </proc/sys/kernel/random/boot_id && printf "%s\\n%s\\n" "$boot" "$stat" >"$0"'
    ' && cd "$1" && shift && exec "$@"'
)
_START_TIME_FIELD = 19  # of /proc/PID/stat, counted after the command's closing bracket; see proc(5)
_RECORD_WRITTEN_WITHIN_SECONDS = 1.0


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def start_time(stat: str) -> tuple[str, int]:
    """State letter and start time from the text of /proc/PID/stat; the command in it may hold spaces and brackets."""
    fields = stat.rpartition(")")[2].split()
    return fields[0], int(fields[_START_TIME_FIELD])


@dataclass(frozen=True)
class Process:
    name: str
    pid: int
    started_ticks: int

    @property
    def running(self) -> bool:
        state = self._state()
        return state is not None and state not in "ZX"

    @property
    def paused(self) -> bool:
        return self._state() == "T"

    @property
    def memory_bytes(self) -> int:
        """Resident, its share of what it shares with others counted in full; 0 when it has ended."""
        try:
            pages = int(Path(f"/proc/{self.pid}/statm").read_text().split()[1]) if self.running else 0
        except (FileNotFoundError, ProcessLookupError):
            return 0
        return pages * os.sysconf("SC_PAGE_SIZE")

    def signal(self, number: signal.Signals) -> bool:
        """Send it to exactly this process; False when that has ended."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.running:
                return False
            signal.pidfd_send_signal(handle, number)
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)
        return True

    def wait(self, timeout_seconds: float) -> bool:
        """Whether it ended in time, with all its threads: only then its ports and files are free."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            poll = select.poll()
            poll.register(handle, select.POLLIN)
            ended = self._state() is None or bool(poll.poll(max(0.0, timeout_seconds) * 1000))
        finally:
            os.close(handle)
        self._reap()
        return ended

    def _state(self) -> str | None:
        try:
            state, started = start_time(Path(f"/proc/{self.pid}/stat").read_text())
        except (FileNotFoundError, ProcessLookupError):
            return None
        return state if started == self.started_ticks else None

    def _reap(self) -> None:
        try:
            os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:
            return


def spawn(
    directory: Path,
    name: str,
    argv: Sequence[str],
    *,
    environ: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Process:
    """Start argv in a new session, with its record in directory/run and its output appended to directory/log."""
    record, log = directory / RECORDS / name, log_path(directory, name)
    record.parent.mkdir(parents=True, exist_ok=True)
    log.parent.mkdir(parents=True, exist_ok=True)
    record.unlink(missing_ok=True)  # a predecessor's would say that the new process has ended
    pid = os.posix_spawn(
        "/bin/sh",
        ["sh", "-c", _RECORD_THEN_EXEC, str(record), str(cwd or directory), *argv],
        dict(os.environ) if environ is None else dict(environ),
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
            *((os.POSIX_SPAWN_CLOSE, descriptor) for descriptor in _inheritable()),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE],
    )
    _, started = start_time(Path(f"/proc/{pid}/stat").read_text())
    process = Process(name, pid, started)
    while process.running and not record.exists():  # a millisecond or two, after which `find` finds it
        time.sleep(0.001)
    return process


def _inheritable() -> list[int]:
    """What our own caller left open for us, such as a lock that would stay held as long as the lab runs."""
    found = []
    for descriptor in (int(entry.name) for entry in Path("/proc/self/fd").iterdir()):
        with suppress(OSError):  # the listing's own is closed by now
            if descriptor > 2 and os.get_inheritable(descriptor):
                found.append(descriptor)
    return found


def log_path(directory: Path, name: str) -> Path:
    return directory / LOGS / f"{name}.log"


def find(directory: Path, name: str) -> Process | None:
    """The process last started under this name, if its record is of this boot; it may have ended."""
    return _read(directory / RECORDS / name)


def recorded(directory: Path) -> list[Process]:
    """Every process that was started here and is of this boot, in the order of their names; some may have ended."""
    records = sorted([*directory.glob(f"{RECORDS}/*"), *directory.glob(f"{CLOSED_RECORDS}/*/*")])
    return [process for process in map(_read, records) if process is not None]


def close(directory: Path, grace_seconds: float) -> None:
    """Stop everything here and let nothing start any more, not even what a killed parent was just about to start.

    With the records moved away a starting process either has its record open already, and is waited for, or can't write it
    and gives up.
    """
    if (directory / RECORDS).exists():
        (directory / CLOSED_RECORDS).mkdir(exist_ok=True)
        (directory / RECORDS).rename(directory / CLOSED_RECORDS / secrets.token_hex(4))
    stop(recorded(directory), grace_seconds)


def dismiss(directory: Path, name: str, grace_seconds: float) -> None:
    """Stop it and delete its record, so that it does not count as crashed. Does nothing if it was never started."""
    process = find(directory, name)
    if process is not None:
        stop([process], grace_seconds)
    (directory / RECORDS / name).unlink(missing_ok=True)


def _read(record: Path) -> Process | None:
    deadline = time.monotonic() + _RECORD_WRITTEN_WITHIN_SECONDS
    while True:
        try:
            text = record.read_text()
        except FileNotFoundError:
            return None
        if text.endswith("\n"):
            break
        if time.monotonic() > deadline:
            return None
        time.sleep(0.005)
    boot, stat = text.splitlines()
    return Process(record.name, int(stat.split()[0]), start_time(stat)[1]) if boot == boot_id() else None


def stop(processes: Iterable[Process], grace_seconds: float) -> None:
    """SIGTERM to all, SIGKILL after the grace period to those that remain, and return when all have ended."""
    remaining = list(processes)
    for process in remaining:
        process.signal(signal.SIGTERM)
        process.signal(signal.SIGCONT)  # a paused process can't answer a SIGTERM
    deadline = time.monotonic() + grace_seconds
    remaining = [process for process in remaining if not process.wait(deadline - time.monotonic())]
    for process in remaining:
        process.signal(signal.SIGKILL)
    for process in remaining:
        if not process.wait(10):
            raise RuntimeError(
                f"process {process.name} (pid {process.pid}) does not end after SIGKILL: look at its state in /proc"
            )
