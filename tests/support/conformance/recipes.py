"""Recipes of the images that Kubernetes' end-to-end tests use, by repository: what is in each, and how it starts. Pure.

Which tags there are is the suite's to say (`e2e.test --list-images`). Two images of one recipe differ in their label, because
a kubelet does not tell names of the same image apart.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from zonewise.lab.decide import oci_image
from zonewise.lab.decide.oci_image import Blob, Image, ImageFiles

PACKAGES: Final = (
    "bind9-dnsutils",
    "ca-certificates",
    "conntrack",
    "curl",
    "iperf",
    "iproute2",
    "iptables",
    "iputils-ping",
    "netcat-openbsd",
    "nginx-light",
    "wget",
)
"""Of Debian, in the layer that images with user-space tools share."""
USERS: Final = (
    "useradd --uid 1000 --create-home user-defined-in-image",
    "groupadd --gid 50000 group-defined-in-image",
    "usermod --append --groups group-defined-in-image user-defined-in-image",
)
"""A spec of supplemental groups looks for these in agnhost's image."""
_REGISTRY: Final = "registry.k8s.io"
_TESTS: Final = f"{_REGISTRY}/e2e-test-images"
_NNP: Final = "usr/local/bin/nnp"
COREDNS: Final = f"{_REGISTRY}/coredns/coredns:lab"
_NGINX: Final = """\
worker_processes 1;
pid /run/nginx.pid;
error_log /dev/stderr;
events {}
http {
  include /etc/nginx/mime.types;
  access_log /dev/stdout;
  server {
    listen 80;
    listen [::]:80;
    root /usr/share/nginx/html;
  }
}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeInputs:
    """What is built before: programs by name, and the layer with Debian's tools."""

    programs: Mapping[str, bytes]
    """Those of the suite's own build, coredns and pause."""
    porter: Mapping[str, str]
    """The certificate and key that agnhost serves with, by file name."""
    busybox: ImageFiles
    debian: Blob


@dataclass(frozen=True, slots=True, kw_only=True)
class _Recipe:
    files: ImageFiles
    settings: Mapping[str, Any] = field(default_factory=dict)
    debian: bool = False


def images(listed: Iterable[str], built: RecipeInputs) -> list[Image]:
    """One image for each name that there is a recipe for, and CoreDNS."""
    recipes = _recipes(built)
    names = [*(name for name in listed if _repository(name) in recipes), COREDNS]
    return [_image(name, recipes[_repository(name)], built.debian) for name in sorted(set(names))]


def _repository(name: str) -> str:
    return name.rpartition(":")[0]


def _image(name: str, recipe: _Recipe, debian: Blob) -> Image:
    layers: Sequence[Blob] = [*([debian] if recipe.debian else []), oci_image.layer(recipe.files)]
    labels = {"org.opencontainers.image.title": name}
    return Image(name, layers, {**recipe.settings, "Labels": labels})


def _recipes(built: RecipeInputs) -> dict[str, _Recipe]:
    programs = built.programs
    agnhost, regression = _agnhost(built), "regression-issue-74839"
    return {
        f"{_REGISTRY}/pause": _Recipe(
            files=ImageFiles(programs={"pause": programs["pause"]}),
            settings={"Entrypoint": ["/pause"], "User": "65535:65535"},
        ),
        f"{_REGISTRY}/coredns/coredns": _Recipe(
            files=ImageFiles(programs={"coredns": programs["coredns"]}), settings={"Entrypoint": ["/coredns"]}
        ),
        f"{_REGISTRY}/build-image/distroless-iptables": _Recipe(files=ImageFiles(), debian=True),
        f"{_REGISTRY}/etcd": _Recipe(files=ImageFiles(programs={"usr/local/bin/etcd": programs["etcd"]})),
        f"{_TESTS}/agnhost": agnhost,
        f"{_TESTS}/busybox": _Recipe(files=built.busybox, settings={"Cmd": ["sh"], "Env": ["PATH=/bin"]}),
        f"{_TESTS}/glibc-dns-testing": _Recipe(
            files=ImageFiles(programs={"coredns": programs["coredns"]}), settings={"Cmd": ["bash"]}, debian=True
        ),
        f"{_TESTS}/nautilus": _nautilus(agnhost),
        f"{_TESTS}/nginx": _nginx(),
        f"{_TESTS}/nonewprivs": _Recipe(
            files=ImageFiles(programs={_NNP: programs["nonewprivs"]}, setuid=frozenset([_NNP])),
            settings={"Cmd": [f"/{_NNP}"]},
        ),
        f"{_TESTS}/{regression}": _Recipe(
            files=ImageFiles(programs={regression: programs[regression]}), settings={"Entrypoint": [f"/{regression}"]}
        ),
        f"{_TESTS}/sample-apiserver": _Recipe(
            files=ImageFiles(programs={"sample-apiserver": programs["sample-apiserver"]}),
            settings={"Entrypoint": ["/sample-apiserver"]},
        ),
    }


def _agnhost(built: RecipeInputs) -> _Recipe:
    return _Recipe(
        files=ImageFiles(
            programs={name: built.programs[name] for name in ("agnhost", "coredns")},
            texts=built.porter,
            links={"agnhost-2": "agnhost", "usr/local/bin/iperf": "/usr/bin/iperf"},
            directories={"uploads": 0o755},
        ),
        settings={"Entrypoint": ["/agnhost"], "Cmd": ["pause"]},
        debian=True,
    )


def _nautilus(agnhost: _Recipe) -> _Recipe:
    """The picture that its page names is fetched by nobody."""
    page = {"data.json": '{"image": "nautilus.jpg"}\n'}
    files = replace(agnhost.files, texts={**agnhost.files.texts, **page})
    return replace(agnhost, files=files, settings={**agnhost.settings, "Cmd": ["test-webserver"]})


def _nginx() -> _Recipe:
    """Paths and title as in nginx' own image: specs move and fetch the page."""
    return _Recipe(
        files=ImageFiles(
            texts={
                "etc/nginx/nginx.conf": _NGINX,
                "usr/share/nginx/html/index.html": "<title>Welcome to nginx!</title>\n",
            }
        ),
        settings={"Cmd": ["nginx", "-g", "daemon off;"]},
        debian=True,
    )
