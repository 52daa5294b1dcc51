from pathlib import Path

from zonewise.lab import setup


def test_packages_of_missing_commands_once_each(tmp_path: Path) -> None:
    assert setup.missing_packages(searched=str(tmp_path)) == ["conntrack", "iproute2", "nftables", "util-linux"]
    for command in ("ip", "tc", "nft"):
        (tmp_path / command).touch(mode=0o755)
    assert setup.missing_packages(searched=str(tmp_path)) == ["conntrack", "util-linux"]
