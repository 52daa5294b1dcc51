"""Where a kind of object lives in the API, and the view it is read through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Resource(Generic[T]):
    """One kind: `PODS = Resource(view=Pod, kind="Pod", plural="pods")`."""

    view: type[T]
    kind: str
    plural: str
    group: str = ""
    version: str = "v1"
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """The URL path; without a namespace it spans all of them."""
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", quote(namespace, safe="")]
        parts.append(self.plural)
        if name:
            parts.append(quote(name, safe=""))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)

    def whole(self) -> Resource[dict[str, Any]]:
        """The same kind read in full, as plain JSON: the only form that may be sent back by an update."""
        return Resource(dict[str, Any], self.kind, self.plural, self.group, self.version, self.namespaced)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural
