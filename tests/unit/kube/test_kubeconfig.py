"""Kubeconfig loading, and one-line errors."""

import base64
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from zonewise.kube.client import kubeconfig
from zonewise.kube.wire.access import (
    BasicAuth,
    ClientCertificate,
    ClusterAccess,
    ExecPlugin,
    Interaction,
    StaticToken,
    TokenFile,
)
from zonewise.kube.wire.errors import ConfigError

PEM = base64.b64encode(b"pem").decode()
V1 = "client.authentication.k8s.io/v1"
V1BETA1 = "client.authentication.k8s.io/v1beta1"


def config(cluster: dict[str, Any], user: dict[str, Any], **context: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "it",
        "clusters": [{"name": "c", "cluster": {"server": "https://api:6443", **cluster}}],
        "users": [{"name": "u", "user": user}],
        "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u", **context}}],
    }


def write_config(folder: Path, document: Any, name: str = "config") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return path


def load_config(folder: Path, document: Any, context: str | None = None) -> ClusterAccess:
    return kubeconfig.load(write_config(folder, document), context, environment={})


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        pytest.param({}, {"server": "https://api:6443", "verify": True, "authority": None}, id="bare"),
        pytest.param({"server": "https://api/k8s/c-1/?x#y"}, {"server": "https://api/k8s/c-1"}, id="below a path"),
        pytest.param({"certificate-authority-data": PEM}, {"authority": b"pem"}, id="inline CA"),
        pytest.param({"certificate-authority": "/etc/ca"}, {"authority": Path("/etc/ca")}, id="CA file"),
        pytest.param(
            {"certificate-authority": "/etc/ca", "certificate-authority-data": PEM},
            {"authority": b"pem"},
            id="data wins",
        ),
        pytest.param({"insecure-skip-tls-verify": True}, {"verify": False}, id="insecure"),
        pytest.param({"tls-server-name": "kubernetes"}, {"tls_server_name": "kubernetes"}, id="server name"),
        pytest.param({"proxy-url": "http://proxy:3128"}, {"proxy_url": "http://proxy:3128"}, id="proxy"),
        pytest.param({"disable-compression": True}, {"compression": False}, id="compression"),
        pytest.param({"certificate-authority": None, "extensions": None}, {"authority": None}, id="null is nothing"),
    ],
)
def test_cluster_fields_are_read(tmp_path: Path, cluster: dict[str, Any], expected: dict[str, Any]) -> None:
    access = load_config(tmp_path, config(cluster, {}))
    assert {name: getattr(access, name) for name in expected} == expected


EXEC = {"command": "get-token", "apiVersion": V1, "interactiveMode": "Never"}


@pytest.mark.parametrize(
    ("user", "credential", "certificate"),
    [
        pytest.param({}, None, None, id="anonymous"),
        pytest.param({"token": "t"}, StaticToken("t"), None, id="token"),
        pytest.param({"tokenFile": "/t"}, TokenFile(Path("/t")), None, id="token file"),
        pytest.param({"tokenFile": "/t", "token": "t"}, TokenFile(Path("/t"), "t"), None, id="the file wins"),
        pytest.param({"username": "me", "password": "p"}, BasicAuth("me", "p"), None, id="password"),
        pytest.param(
            {"client-certificate-data": PEM, "client-key": "/k"},
            None,
            ClientCertificate(b"pem", Path("/k")),
            id="certificate",
        ),
        pytest.param(
            {"client-certificate": "/c", "client-key-data": PEM, "token": "t"},
            StaticToken("t"),
            ClientCertificate(Path("/c"), b"pem"),
            id="certificate and token",
        ),
        pytest.param({"token": "t", "exec": EXEC}, StaticToken("t"), None, id="a token wins over exec"),
        pytest.param(
            {"exec": EXEC},
            ExecPlugin(command="get-token", api_version=V1, interaction=Interaction.NEVER),
            None,
            id="exec",
        ),
        pytest.param(
            {
                "exec": {
                    "command": "/bin/get-token",
                    "apiVersion": V1BETA1,
                    "args": ["--cluster", "c"],
                    "env": [{"name": "A", "value": "b"}],
                    "installHint": "apt install it",
                }
            },
            ExecPlugin(
                command="/bin/get-token",
                arguments=("--cluster", "c"),
                environment=(("A", "b"),),
                api_version=V1BETA1,
                interaction=Interaction.IF_AVAILABLE,
                install_hint="apt install it",
            ),
            None,
            id="exec v1beta1",
        ),
    ],
)
def test_user_fields_are_read(tmp_path: Path, user: dict[str, Any], credential: Any, certificate: Any) -> None:
    access = load_config(tmp_path, config({}, user))
    assert (access.credential, access.certificate) == (credential, certificate)


def test_exec_plugin_gets_the_cluster_if_requested(tmp_path: Path) -> None:
    cluster = {
        "certificate-authority": "ca.crt",
        "tls-server-name": "kubernetes",
        "extensions": [
            {"name": "other", "extension": 1},
            {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}},
        ],
    }
    access = load_config(tmp_path, config(cluster, {"exec": {**EXEC, "provideClusterInfo": True}}))
    assert isinstance(access.credential, ExecPlugin)
    assert access.credential.cluster == {
        "server": "https://api:6443",
        "tls-server-name": "kubernetes",
        "config": {"audience": "x"},
    }
    assert access.credential.authority == tmp_path / "ca.crt"


def test_relative_paths_are_relative_to_their_file(tmp_path: Path) -> None:
    user = {"client-certificate": "pki/c", "client-key": "../k", "tokenFile": "t"}
    access = load_config(tmp_path / "sub", config({"certificate-authority": "pki/ca"}, user))
    assert access.authority == tmp_path / "sub" / "pki" / "ca"
    assert access.certificate == ClientCertificate(tmp_path / "sub" / "pki" / "c", tmp_path / "sub" / ".." / "k")
    assert access.credential == TokenFile(tmp_path / "sub" / "t")


@pytest.mark.parametrize(
    ("command", "expected"), [("./bin/it", "{folder}/bin/it"), ("it", "it"), ("/bin/it", "/bin/it")]
)
def test_command_with_a_slash_is_a_path(tmp_path: Path, command: str, expected: str) -> None:
    access = load_config(tmp_path, config({}, {"exec": {**EXEC, "command": command}}))
    assert isinstance(access.credential, ExecPlugin)
    assert access.credential.command == expected.format(folder=tmp_path)


def test_impersonation_becomes_headers(tmp_path: Path) -> None:
    user = {
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["a", "b"],
        "as-user-extra": {"example.com/scope%": ["x", "y"]},
    }
    assert load_config(tmp_path, config({}, user)).impersonation == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-example.com%2Fscope%25", "x"),
        ("Impersonate-Extra-example.com%2Fscope%25", "y"),
    )


def test_no_credentials_over_plain_http(tmp_path: Path) -> None:
    user = {"token": "t", "client-certificate-data": PEM, "client-key-data": PEM}
    access = load_config(tmp_path, config({"server": "http://api:8080"}, user))
    assert (access.credential, access.certificate) == (None, None)


def test_repr_contains_no_secret(tmp_path: Path) -> None:
    secret = "s3cret"
    encoded = base64.b64encode(secret.encode()).decode()
    users = [
        {"token": secret},
        {"tokenFile": "t", "token": secret},
        {"username": "u", "password": secret},
        {"client-certificate-data": encoded, "client-key-data": encoded},
        {"exec": {**EXEC, "env": [{"name": "A", "value": secret}]}},
        {"exec": {**EXEC, "args": ["--password", secret]}},
        {"exec": {**EXEC, "provideClusterInfo": True}},
    ]
    for user in users:
        assert secret not in repr(load_config(tmp_path, config({"proxy-url": f"http://joe:{secret}@proxy"}, user)))


@pytest.mark.parametrize(
    "proxy",
    [
        "socks5://joe:s3cret@p",
        "joe:s3cret@p:80",
        "http://joe:s3cret@",
        "http://joe:s3/cret@p:80",
        "http://j%3Ae:s3cret@p",
    ],
)
def test_proxy_error_contains_no_password(tmp_path: Path, proxy: str) -> None:
    with pytest.raises(ConfigError, match=r"proxy-url '.*' is not supported; use http://HOST:PORT") as caught:
        load_config(tmp_path, config({"proxy-url": proxy}, {}))
    assert "s3" not in str(caught.value)


def test_context_can_be_named(tmp_path: Path) -> None:
    document = config({}, {}, namespace="here")
    document["contexts"].append({"name": "other", "context": {"cluster": "c", "user": "u", "namespace": "there"}})
    assert load_config(tmp_path, document).namespace == "here"
    assert load_config(tmp_path, document, "other").namespace == "there"
    assert load_config(tmp_path, config({}, {})).namespace == "default"


def test_context_without_a_user_is_anonymous(tmp_path: Path) -> None:
    document = config({}, {})
    document["contexts"][0]["context"].pop("user")
    assert load_config(tmp_path, document).credential is None


def test_first_file_with_a_name_wins(tmp_path: Path) -> None:
    first = config({"server": "https://first"}, {"token": "first"})
    first["current-context"] = ""
    second = config({"server": "https://second", "certificate-authority": "ca"}, {"token": "second", "as": "jane"})
    second["clusters"].append(
        {"name": "only-second", "cluster": {"server": "https://third", "certificate-authority": "ca"}}
    )
    second["contexts"].append({"name": "third", "context": {"cluster": "only-second", "user": "u"}})
    paths = [write_config(tmp_path / "1", first), tmp_path / "missing", write_config(tmp_path / "2", second)]
    environment = {"KUBECONFIG": ":".join(["", *map(str, paths), str(paths[0])])}

    access = kubeconfig.load(environment=environment)
    assert (access.server, access.authority, access.credential) == ("https://first", None, StaticToken("first"))
    assert access.impersonation == ()

    access = kubeconfig.load(context="third", environment=environment)
    assert (access.server, access.authority) == ("https://third", tmp_path / "2" / "ca")
    assert access.credential == StaticToken("first")


def test_home_directory_is_the_last_default(tmp_path: Path) -> None:
    write_config(tmp_path / ".kube", config({}, {}))
    assert kubeconfig.load(environment={"HOME": str(tmp_path)}).server == "https://api:6443"


def test_proxy_may_come_from_the_environment(tmp_path: Path) -> None:
    path = write_config(tmp_path, config({}, {}))
    environment = {"HTTPS_PROXY": "http://proxy:3128"}
    assert kubeconfig.load(path, environment=environment).proxy_url == "http://proxy:3128"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        pytest.param("a: [", "config is not YAML", id="YAML"),
        pytest.param("[]", "config: Expected `object`, got `array`", id="a list"),
        pytest.param(config({}, {"token": 5}), r"got `int` - at `\$.users\[0\].user.token`; correct", id="a number"),
        pytest.param("", "no current-context is set; .*it has none", id="empty"),
        pytest.param({**config({}, {}), "current-context": ""}, "--context; it has it$", id="no current context"),
        pytest.param({**config({}, {}), "current-context": "x"}, "no context named 'x'; it has it", id="context"),
        pytest.param({**config({}, {}), "clusters": []}, "no cluster of context 'it' named 'c'", id="cluster"),
        pytest.param({**config({}, {}), "users": None}, "no user of context 'it' named 'u'; it has none", id="user"),
        pytest.param(
            {**config({}, {}), "users": [{"name": "u"}, {"name": "u"}]}, "two users named 'u'", id="twice the same"
        ),
        pytest.param(config({"server": ""}, {}), "server '' is not a URL", id="no server"),
        pytest.param(config({"server": "api:6443"}, {}), "expected https://HOST", id="server without a scheme"),
        pytest.param(config({"server": "ftp://api"}, {}), "is not a URL", id="another scheme"),
        pytest.param(config({"server": "https://["}, {}), "is not a URL", id="half an address"),
        pytest.param(config({"server": "https://api:99999"}, {}), "is not a URL", id="a port that is none"),
        pytest.param(
            {**config({}, {}), "users": [{"name": "a\nb"}]}, r"named 'u'; it has 'a\\nb'$", id="a name of two lines"
        ),
        pytest.param("a: " + "[" * 100_000, "is not YAML: nested more than 200 levels deep", id="nesting"),
        pytest.param("a: &a [*a, *a]", "is not YAML: its aliases stand for", id="an alias of itself"),
        pytest.param("kind: Config\n---\nkind: Config\n", "2 YAML documents; write one", id="documents"),
        pytest.param(
            config({"certificate-authority-data": "?"}, {}), "certificate-authority-data is not base64", id="base64"
        ),
        pytest.param(config({"proxy-url": "socks5://p"}, {}), "proxy-url 'socks5://p' is not supported", id="proxy"),
        pytest.param(
            config({"insecure-skip-tls-verify": True, "certificate-authority": "ca"}, {}),
            "remove one",
            id="insecure CA",
        ),
        pytest.param(config({}, {"client-certificate": "c"}), "without its client-key", id="no key"),
        pytest.param(config({}, {"token": "t", "username": "u"}), "both a token and a username", id="two ways"),
        pytest.param(
            config({}, {"auth-provider": {"name": "gcp"}}), "auth-provider 'gcp' is not supp", id="auth provider"
        ),
        pytest.param(config({}, {"as-groups": ["a"]}), "without as; add the user", id="groups of nobody"),
        pytest.param(config({}, {"exec": {}}), "no command", id="no command"),
        pytest.param(config({}, {"exec": {"command": "x"}}), "has apiVersion ''; expected", id="no version"),
        pytest.param(
            config({}, {"exec": {**EXEC, "apiVersion": "client.authentication.k8s.io/v1alpha1"}}),
            "v1alpha1'; expected .*/v1 or .*/v1beta1",
            id="old version",
        ),
        pytest.param(
            config({}, {"exec": {"command": "x", "apiVersion": V1}}), "needs an interactiveMode", id="no mode"
        ),
        pytest.param(config({}, {"exec": {**EXEC, "interactiveMode": "No"}}), "Invalid enum value 'No'", id="mode"),
    ],
)
def test_errors_are_one_line(tmp_path: Path, document: Any, says: str) -> None:
    with pytest.raises(ConfigError, match=says) as raised:
        load_config(tmp_path, document)
    assert "\n" not in str(raised.value)
    assert str(tmp_path / "config") in str(raised.value)


def test_unreadable_files_raise(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"missing cannot be read: .*No such file"):
        kubeconfig.load(tmp_path / "missing", environment={})
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="binary cannot be read"):
        kubeconfig.load(tmp_path / "binary", environment={})
    with pytest.raises(
        ConfigError, match=f"no kubeconfig: {re.escape(str(tmp_path))}/.kube/config does not exist; give one"
    ):
        kubeconfig.load(environment={"HOME": str(tmp_path)})


def pod(tmp_path: Path, *files: str) -> Path:
    contents = {"token": "t", "ca.crt": "pem", "namespace": "here\n"}
    for name in files or contents:
        (tmp_path / name).write_text(contents[name])
    return tmp_path


INSIDE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_in_cluster_config_is_read(tmp_path: Path) -> None:
    access = kubeconfig.in_cluster(pod(tmp_path), INSIDE)
    assert (access.server, access.namespace) == ("https://10.96.0.1:443", "here")
    assert (access.authority, access.credential) == (tmp_path / "ca.crt", TokenFile(tmp_path / "token"))


def test_in_cluster_config_with_ipv6_and_default_namespace(tmp_path: Path) -> None:
    access = kubeconfig.in_cluster(pod(tmp_path, "token", "ca.crt"), {**INSIDE, "KUBERNETES_SERVICE_HOST": "fd00::1"})
    assert (access.server, access.namespace) == ("https://[fd00::1]:443", "default")


def test_in_cluster_config_outside_a_pod_raises(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not in a cluster: KUBERNETES_SERVICE_HOST"):
        kubeconfig.in_cluster(pod(tmp_path), {})
    (tmp_path / "ca.crt").unlink()
    with pytest.raises(ConfigError, match=r"ca.crt is missing; is automountServiceAccountToken off\?"):
        kubeconfig.in_cluster(tmp_path, INSIDE)


def test_kubeconfig_wins_over_in_cluster_config(tmp_path: Path) -> None:
    path = write_config(tmp_path, config({}, {}))
    assert kubeconfig.default({**INSIDE, "KUBECONFIG": str(path)}).server == "https://api:6443"
    with pytest.raises(ConfigError, match="in a cluster, but /var/run/secrets"):
        kubeconfig.default({**INSIDE, "HOME": str(tmp_path / "nobody")})
    with pytest.raises(ConfigError, match="no kubeconfig"):
        kubeconfig.default({"HOME": str(tmp_path / "nobody")})
