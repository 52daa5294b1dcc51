from zonewise.lab.build import gomod
from zonewise.lab.build.binaries import DEFAULT_VERSION, SOURCES

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
