"""Image archives: layout, digests, names, and the same bytes from the same files."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.decide.oci_image import Image, ImageFiles, archive, archive_of, layer

FILES = ImageFiles(
    programs={"bin/tool": b"\x7fELF"},
    texts={"etc/passwd": "root:x:0:0::/:/bin/sh\n"},
    links={"bin/sh": "tool"},
    directories={"tmp": 0o1777},
)


def members(content: bytes) -> dict[str, bytes]:
    with tarfile.open(fileobj=io.BytesIO(content)) as tar:
        return {entry.name: (file.read() if (file := tar.extractfile(entry)) else b"") for entry in tar}


def blob(files: dict[str, bytes], descriptor: dict[str, Any]) -> bytes:
    content = files[f"blobs/{descriptor['digest'].replace(':', '/')}"]
    assert f"sha256:{hashlib.sha256(content).hexdigest()}" == descriptor["digest"]
    assert len(content) == descriptor["size"]
    return content


def test_archive_names_its_image_and_every_blob_by_hash() -> None:
    files = members(archive("example.test/tool:v1", FILES, {"Cmd": ["sh"]}, "arm64"))
    assert json.loads(files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    [entry] = json.loads(files["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == "example.test/tool:v1"
    assert entry["annotations"]["org.opencontainers.image.ref.name"] == "v1"
    manifest = json.loads(blob(files, entry))
    config = json.loads(blob(files, manifest["config"]))
    assert (config["architecture"], config["os"], config["config"]) == ("arm64", "linux", {"Cmd": ["sh"]})
    [layer] = manifest["layers"]
    assert config["rootfs"]["diff_ids"] == [layer["digest"]]
    assert members(blob(files, layer))["bin/tool"] == b"\x7fELF"


def test_layer_keeps_modes_and_links() -> None:
    files = members(archive("a:1", FILES, {}, "amd64"))
    layers = [content for name, content in files.items() if name.startswith("blobs/") and not content.startswith(b"{")]
    with tarfile.open(fileobj=io.BytesIO(layers[0])) as tar:
        modes = {entry.name: (entry.mode, entry.uid, entry.mtime) for entry in tar}
        assert tar.getmember("bin/sh").linkname == "tool"
    assert modes["bin/tool"] == (0o755, 0, 0)
    assert modes["etc/passwd"] == (0o644, 0, 0)
    assert modes["tmp"] == (0o1777, 0, 0)


def test_archive_of_many_images_has_a_shared_layer_once() -> None:
    base, top = layer(FILES), layer(ImageFiles(texts={"etc/motd": "hello\n"}))
    images = [Image("one.test/a:1", [base]), Image("one.test/b:2", [base, top], {"Cmd": ["tool"]})]
    files = members(archive_of(images, "amd64"))
    entries = json.loads(files["index.json"])["manifests"]
    assert [entry["annotations"]["io.containerd.image.name"] for entry in entries] == ["one.test/a:1", "one.test/b:2"]
    first, second = (json.loads(blob(files, entry))["layers"] for entry in entries)
    assert (first, second[0]) == (second[:1], first[0])
    assert members(blob(files, second[1])) == {"etc/motd": b"hello\n"}
    assert len([name for name in files if name.startswith("blobs/")]) == 2 + 2 * 2


@given(st.dictionaries(st.text("abc/", min_size=1).map(lambda path: f"x{path.strip('/')}"), st.binary(), max_size=4))
def test_same_files_in_any_order_give_the_same_bytes(programs: dict[str, bytes]) -> None:
    turned = dict(reversed(list(programs.items())))
    first, second = (archive("a:1", ImageFiles(programs=files), {}, "amd64") for files in (programs, turned))
    assert first == second
