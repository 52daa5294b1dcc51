"""A self-signed certificate and its key on stdout: `python -m zonewise.kube.server.self_signed DAYS HOST ...`."""

from __future__ import annotations

import datetime as dt
import sys

from zonewise.kube.server.certificates import Authority


def main(days: str, *hosts: str) -> None:
    now, lifetime = dt.datetime.now(dt.UTC), dt.timedelta(days=int(days))
    leaf = Authority.create(now, lifetime).issue(hosts, now, lifetime)
    sys.stdout.buffer.write(leaf.certificate_pem + leaf.key_pem)


if __name__ == "__main__":
    main(*sys.argv[1:])
