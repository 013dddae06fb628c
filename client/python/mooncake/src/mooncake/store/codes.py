"""Upstream's result codes, as far as this package returns them itself. All others come from the native module."""

from __future__ import annotations

from typing import Final

OK: Final = 0
UNAVAILABLE: Final = -1
"""Setup found no leader."""
ADDRESS_NOT_REGISTERED: Final = -12
INVALID_PARAMS: Final = -600
OBJECT_NOT_FOUND: Final = -704
RPC_FAIL: Final = -900

# The native module's own codes are below this one, and upstream has none there.
_FIRST_OF_UPSTREAM = -2000

HEALTHY: Final = 0
NOT_SET_UP: Final = 1
NO_LEADER: Final = 2


def upstream(code: int) -> int:
    """Upstream's code for a failed call: one of this project's own means that there is no leader to answer."""
    return RPC_FAIL if code < _FIRST_OF_UPSTREAM else code
