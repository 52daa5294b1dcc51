"""Watch over volumes: each problem is reported once, and counted as long as it lasts."""

from zonewise.ceph.node.volume_watch import BROKEN, VolumeWatch


async def test_problems_are_reported_once_and_counted() -> None:
    problems: dict[str, str] = {}
    reports: list[str] = []
    watch = VolumeWatch(lambda: dict(problems), reports.append)
    counts = []
    for change in ({}, {"a": "ended"}, {"a": "ended", "b": "hangs"}, {"a": "hangs"}, {}, {"a": "ended"}):
        problems.clear()
        problems.update(change)
        await watch.check()
        counts.append(BROKEN._value.get())
    assert counts == [0, 1, 2, 1, 0, 1]
    assert reports == ["volume a: ended", "volume b: hangs", "volume a: hangs", "volume a: ended"]


async def test_failed_check_is_repeated() -> None:
    reports: list[str] = []
    answers = iter([OSError("no such directory"), {"a": "ended"}])

    def problems() -> dict[str, str]:
        answer = next(answers)
        if isinstance(answer, OSError):
            raise answer
        return answer

    watch = VolumeWatch(problems, reports.append)
    await watch.check()
    await watch.check()
    assert reports == ["volume a: ended"]
