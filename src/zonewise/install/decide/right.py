"""A right: a verb on objects, as RBAC grants it. Pure."""

from __future__ import annotations

from typing import Final, NamedTuple

GRANTING_VERBS: Final = {
    "escalate": "to make a role with rights that you don't have yourself",
    "bind": "to give others a role with rights that you don't have yourself",
}
"""Kubernetes asks for these unless one has all that is granted: cluster-admin has both."""


class Right(NamedTuple):
    """This verb on these objects, in a namespace or anywhere, on those of a name or on all."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        text = f"{self.verb} {kind}{f' {self.name}' if self.name else ''}{f' in {self.namespace}' if self.namespace else ''}"
        return f"{text} ({GRANTING_VERBS[self.verb]})" if self.verb in GRANTING_VERBS else text
