"""Software bill of materials of an image, as CycloneDX JSON: Python packages of a lock file, and Debian's from `dpkg-query -W` on stdin.

Needs only the standard library, and prints the same for the same input and SOURCE_DATE_EPOCH.
"""

import json
import os
import re
import sys
import uuid
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from urllib.parse import quote

ROOT = Path(__file__).resolve().parents[1]
Component = dict[str, object]


def python_packages(lock: str) -> list[Component]:
    """Each with the hashes that the installer accepts, of which it used one."""
    parts = re.findall(r"^([\w.-]+)==(\S+)((?:.*\\\n)*.*)$", lock, re.MULTILINE)
    return [
        _component(name, version, f"pkg:pypi/{name.lower().replace('_', '-')}@{version}")
        | {"properties": [{"name": "accepted", "value": digest} for digest in re.findall(r"--hash=(\S+)", hashes)]}
        for name, version, hashes in parts
    ]


def debian_packages(listing: Iterable[str]) -> list[Component]:
    """Of lines such as `libc6:amd64<tab>2.36-9`."""
    rows = (line.split("\t") for line in listing if line.strip())
    return [
        _component(name, version.strip(), f"pkg:deb/debian/{quote(name.partition(':')[0])}@{quote(version.strip())}")
        for name, version in rows
    ]


def bill(components: list[Component], version: str, seconds: int) -> dict[str, object]:
    names = json.dumps(components, sort_keys=True)
    main = _component("zonewise", version, f"pkg:pypi/zonewise@{version}") | {"type": "application"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, names)}",
        "version": 1,
        "metadata": {"timestamp": datetime.fromtimestamp(seconds, UTC).isoformat(), "component": main},
        "components": sorted(components, key=lambda each: str(each["purl"])),
    }


def _component(name: str, version: str, purl: str) -> Component:
    return {"type": "library", "bom-ref": f"{purl}#{name}", "name": name, "version": version, "purl": purl}


def main(lock: str) -> None:
    found = re.search(r'__version__ = "(.+)"', (ROOT / "src/zonewise/__init__.py").read_text())
    assert found
    components = python_packages(Path(lock).read_text()) + debian_packages(sys.stdin)
    seconds = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    json.dump(bill(components, found[1], seconds), sys.stdout, indent=1)


if __name__ == "__main__":
    main(sys.argv[1])
