from zonewise.lab.build import gomod
from zonewise.lab.build.binaries import DEFAULT_VERSION, SOURCES

OURS = """\
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
THEIRS = """\
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


def test_another_version_brings_its_own_parts() -> None:
    assert gomod.rewrite(OURS, "v1.35.4", gomod.staging_modules(THEIRS)) == REWRITTEN


def test_what_is_required() -> None:
    expected = [
        "github.com/spf13/cobra",
        "k8s.io/client-go",
        "k8s.io/kubernetes",
        "k8s.io/utils",
        "sigs.k8s.io/kwok",
        "cel.dev/expr",
        "k8s.io/api",
    ]
    assert gomod.required(OURS) == expected
    assert gomod.required("module m\n\nrequire example.com/one v1.0.0\n") == ["example.com/one"]


def test_our_own_file_is_of_the_default_version() -> None:
    text = (SOURCES / "go.mod").read_text()
    assert f"k8s.io/kubernetes {DEFAULT_VERSION}\n" in text
    assert f"k8s.io/api => k8s.io/api {gomod.staging_version(DEFAULT_VERSION)}\n" in text
