"""Version of the API server that an install needs. Pure."""

from __future__ import annotations

from typing import Final

POLICIES_MINOR: Final = 30
"""The first version with ValidatingAdmissionPolicy v1, which limits our service accounts and guards deletes."""
NO_POLICIES: Final = "has no ValidatingAdmissionPolicy, which limits Zonewise's service accounts and guards deletes"
UPGRADE: Final = f"upgrade to 1.{POLICIES_MINOR} or later"
