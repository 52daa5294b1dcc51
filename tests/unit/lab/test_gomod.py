from pathlib import Path

import pytest

from zonewise.lab.build import gomod
from zonewise.lab.build.binaries import DEFAULT_VERSION, SOURCES, BinariesError
from zonewise.lab.build.build import GoToolchain

LAB_MOD = """\
module zonewise.dev/lab

go 1.26.0

require (
\tgithub.com/spf13/cobra v1.10.2
\tk8s.io/client-go v0.36.3
\tk8s.io/kubernetes v1.36.3
\tk8s.io/utils v0.0.0-20260210185600-b8788abfbbc2
\tsigs.k8s.io/kwok v0.8.0
)

require (
\tcel.dev/expr v0.25.1 // indirect
\tk8s.io/api v0.36.3 // indirect
)

replace (
\tk8s.io/api => k8s.io/api v0.36.3
\tk8s.io/streaming => k8s.io/streaming v0.36.3
)
"""
KUBERNETES_MOD = """\
module k8s.io/kubernetes

replace (
\tk8s.io/api => ./staging/src/k8s.io/api
\tk8s.io/client-go => ./staging/src/k8s.io/client-go
)
"""
REWRITTEN = """\
module zonewise.dev/lab

go 1.26.0

require (
\tgithub.com/spf13/cobra v1.10.2
\tk8s.io/client-go v0.0.0
\tk8s.io/kubernetes v1.35.4
\tk8s.io/utils v0.0.0-20260210185600-b8788abfbbc2
)

replace (
\tk8s.io/api => k8s.io/api v0.35.4
\tk8s.io/client-go => k8s.io/client-go v0.35.4
)
"""


def test_rewrite_uses_the_versions_staging_modules() -> None:
    assert gomod.rewrite(LAB_MOD, "v1.35.4", gomod.staging_modules(KUBERNETES_MOD)) == REWRITTEN


def test_required_lists_all_modules() -> None:
    expected = [
        "github.com/spf13/cobra",
        "k8s.io/client-go",
        "k8s.io/kubernetes",
        "k8s.io/utils",
        "sigs.k8s.io/kwok",
        "cel.dev/expr",
        "k8s.io/api",
    ]
    assert gomod.required(LAB_MOD) == expected
    assert gomod.required("module m\n\nrequire example.com/one v1.0.0\n") == ["example.com/one"]


def test_go_mod_has_the_default_version() -> None:
    text = (SOURCES / "go.mod").read_text()
    assert f"k8s.io/kubernetes {DEFAULT_VERSION}\n" in text
    assert f"k8s.io/api => k8s.io/api {gomod.staging_version(DEFAULT_VERSION)}\n" in text


def test_version_that_cannot_be_fetched_is_named_with_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A module proxy that knows the version and does not give it."""
    proxy = tmp_path / "proxy/k8s.io/kubernetes/@v"
    proxy.mkdir(parents=True)
    (proxy / "list").write_text("v1.98.0\nv1.99.1\n")
    for version in ("v1.99.1", "v1.99.2"):
        (proxy / f"{version}.info").write_text(f'{{"Version": "{version}"}}')
        (proxy / f"{version}.mod").write_text("module k8s.io/kubernetes\n")
    (tmp_path / "go.mod").write_text("module m\n\ngo 1.24\n")
    settings = {"GOPROXY": f"file://{tmp_path}/proxy", "GOSUMDB": "off", "GOFLAGS": "-mod=mod -modcacherw"}
    for name, value in (settings | {"GOMODCACHE": str(tmp_path / "cache")}).items():
        monkeypatch.setenv(name, value)
    said = r"Kubernetes v1\.99\.2 can't be fetched: `go mod` failed: .*v1\.99\.2\.zip: no such file .*listed: v1\.98\.0, v1\.99\.1"
    with pytest.raises(BinariesError, match=said):
        gomod.select(tmp_path, "v1.99.2", GoToolchain(tmp_path).run)
