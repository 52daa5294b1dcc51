"""One contestant in its own process: decode a recorded list of pods page by page, keep all, print the cost.

python -m bench.kube.decode zonewise|official|lightkube|kr8s PAGES_FILE
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

Decoder = Callable[[bytes], list[Any]]


def zonewise() -> Decoder:
    from zonewise.kube.wire.codec import read_page
    from zonewise.objects import Pod

    return lambda body: read_page(body, Pod, "list of pods").items


def official() -> Decoder:
    from kubernetes import client

    api = client.ApiClient()

    class Response:
        def __init__(self, body: bytes) -> None:
            self.data = body.decode()

    def decode(body: bytes) -> list[Any]:
        items: list[Any] = _official_list(api, Response(body)).items
        return items

    return decode


def _official_list(api: Any, response: Any) -> Any:
    try:
        return api.deserialize(response, "V1PodList")
    except TypeError:  # newer generators hand over text and content type
        return api.deserialize(response.data, "V1PodList", "application/json")


def lightkube() -> Decoder:
    from lightkube.models.core_v1 import PodList

    return lambda body: PodList.from_dict(json.loads(body)).items  # type: ignore[attr-defined] # made by a class decorator


def kr8s() -> Decoder:
    from kr8s.asyncio.objects import Pod

    return lambda body: [Pod(item) for item in json.loads(body)["items"]]


def main(name: str, recorded: Path) -> None:
    decode = {"zonewise": zonewise, "official": official, "lightkube": lightkube, "kr8s": kr8s}[name]()
    gc.collect()
    memory_before, seconds, pods = _resident_bytes(), 0.0, []
    for body in _bodies(recorded):
        started = time.process_time()
        pods += decode(body)
        seconds += time.process_time() - started
        del body
    gc.collect()
    print(json.dumps({"pods": len(pods), "cpu_seconds": seconds, "mib": (_resident_bytes() - memory_before) / 2**20}))


def _bodies(recorded: Path) -> Iterator[bytes]:
    with recorded.open("rb") as lines:
        yield from lines


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
