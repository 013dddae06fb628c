"""Client of mc, a replicated pool of memory for the KV caches of LLM inference.

>>> with mc.Client("10.0.0.1:50051") as client:
...     client.put("key", b"value")
...     client.get("key")
"""

from mc import _native
from mc._aio import AsyncClient, AsyncReadSession, AsyncWriteSession
from mc._client import Client, ReadSession, Registration, WriteSession
from mc._errors import ConnectionLost, InvalidArgument, McError, NoRoom, NotFound, TimedOut
from mc._native import Memory, allocate
from mc._types import Description, Key, Listed, Put, Removed, Replica, Source, Target

__version__: str = _native.__version__
__all__ = [
    "AsyncClient",
    "AsyncReadSession",
    "AsyncWriteSession",
    "Client",
    "ConnectionLost",
    "Description",
    "InvalidArgument",
    "Key",
    "Listed",
    "McError",
    "Memory",
    "NoRoom",
    "NotFound",
    "Put",
    "ReadSession",
    "Registration",
    "Removed",
    "Replica",
    "Source",
    "Target",
    "TimedOut",
    "WriteSession",
    "allocate",
]
