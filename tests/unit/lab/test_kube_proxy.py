"""When kube-proxy listens for its node's zone, told by what it writes."""

from pathlib import Path

from zonewise.lab.decide import addresses
from zonewise.lab.nodes.kube_proxy import StartedProxy

EARLIER = b'I1116 04:14:06 config.go:309] "Starting node config controller"\n'


def test_only_what_it_writes_in_this_life_counts(tmp_path: Path) -> None:
    log = tmp_path / "kube-proxy-zone-a-1"
    log.write_bytes(EARLIER)
    started = StartedProxy(addresses.plan("lab", 0, ("zone-a",), 1).nodes[0], log, earlier_bytes=len(EARLIER))
    assert not started.listens
    log.write_bytes(EARLIER + b"something else\n" + EARLIER)
    assert started.listens
