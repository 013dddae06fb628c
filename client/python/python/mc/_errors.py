"""Exceptions of calls."""

from __future__ import annotations

__all__ = ["ConnectionLost", "InvalidArgument", "McError", "NoRoom", "NotFound", "TimedOut"]


class McError(Exception):
    """A call, or one of its items, failed.

    ``code`` and ``name`` are the result code, ``is_definite`` says whether the call did nothing for sure: if it is false, it may have taken
    effect, or may still do so.
    """

    def __init__(self, message: str, *, code: int, name: str, is_definite: bool) -> None:
        super().__init__(message)
        self.code = code
        self.name = name
        self.is_definite = is_definite

    def __reduce__(self) -> tuple[object, ...]:
        return (error_of, (self.code, self.name, self.is_definite, str(self)))


class ConnectionLost(McError):
    """No leader, master or store could be reached."""


class TimedOut(McError):
    """The call was not answered by its deadline."""


class NotFound(McError):
    """There is no such object."""


class NoRoom(McError):
    """The pool, the quota of the tenant, the group or this process has no room."""


class InvalidArgument(McError, ValueError):
    """An argument can't be used."""


_CLASSES: dict[str, type[McError]] = {
    "NO_LEADER": ConnectionLost,
    "NOT_LEADER": ConnectionLost,
    "RPC_FAIL": ConnectionLost,
    "TRANSFER_FAIL": ConnectionLost,
    "RPC_TIMEOUT": TimedOut,
    "PUT_GONE": TimedOut,
    "OBJECT_NOT_FOUND": NotFound,
    "NO_AVAILABLE_HANDLE": NoRoom,
    "DISK_NEARLY_FULL": NoRoom,
    "GROUP_FULL": NoRoom,
    "RESOURCE_EXHAUSTED": NoRoom,
    "OBJECT_TOO_LARGE": NoRoom,
    "TENANT_QUOTA_EXCEEDED": NoRoom,
    "INVALID_KEY": InvalidArgument,
    "INVALID_PARAMS": InvalidArgument,
}


def error_of(code: int, name: str, is_definite: bool, message: str) -> McError:
    """Returns the exception for a result code; called by the extension module."""
    return _CLASSES.get(name, McError)(message, code=code, name=name, is_definite=is_definite)
