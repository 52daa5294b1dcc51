import sysconfig
from pathlib import Path

from zonewise.lab.build import setup


def test_missing_packages_are_listed_once(tmp_path: Path) -> None:
    commands = ["conntrack", "ip", "nft", "nsenter", "setpriv", "tc"]
    assert setup.missing_packages(commands, str(tmp_path)) == ["conntrack", "iproute2", "nftables", "util-linux"]
    for command in ("ip", "tc", "nft"):
        (tmp_path / command).touch(mode=0o755)
    assert setup.missing_packages(commands, str(tmp_path)) == ["conntrack", "util-linux"]


def test_missing_libraries_are_detected_by_file(tmp_path: Path) -> None:
    (tmp_path / "here.so").touch()
    below = str(tmp_path).removeprefix("/")
    assert setup.missing_libraries({f"{below}/here.*": "there", f"{below}/gone.*": "missing"}) == ["missing"]


def test_only_bindings_of_this_python_are_linked(tmp_path: Path) -> None:
    system, site = tmp_path / "system", tmp_path / "site"
    system.mkdir()
    site.mkdir()
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for name in (f"rados{suffix}", "rbd.cpython-39-x86_64-linux-gnu.so", f"yaml{suffix}"):
        (system / name).touch()
    assert setup.link_bindings(site, system) == ["rados"]
    assert setup.link_bindings(site, system) == ["rados"]  # again, as each `make setup` does
    assert [path.name for path in site.iterdir()] == [f"rados{suffix}"]
