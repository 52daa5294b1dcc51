"""Detection in the log that kube-proxy watches its node."""

from pathlib import Path

from zonewise.lab.decide import addresses
from zonewise.lab.nodes.kube_proxy import StartedProxy

EARLIER = b'I1116 04:14:06 config.go:309] "Starting node config controller"\n'


def test_log_lines_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "kube-proxy-zone-a-1"
    log.write_bytes(EARLIER)
    started = StartedProxy(addresses.plan("lab", 0, ("zone-a",), 1).nodes[0], log, earlier_bytes=len(EARLIER))
    assert not started.listens
    log.write_bytes(EARLIER + b"something else\n" + EARLIER)
    assert started.listens
