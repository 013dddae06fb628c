"""The store for asyncio: each method `name` has a coroutine `async_name`."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from .store import MooncakeDistributedStore

_PREFIX = "async_"


class MooncakeDistributedStoreAsync(MooncakeDistributedStore):
    """A store whose calls can be awaited. They run in the default executor of the running loop."""

    def __getattr__(self, name: str) -> Any:
        blocking_name = name.removeprefix(_PREFIX)
        blocking = getattr(type(self), blocking_name, None) if name != blocking_name else None
        if not callable(blocking):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        # Not kept on the instance: that would be a cycle, and the end of the last reference is to unmount.
        return _in_executor(getattr(self, blocking_name))


def _in_executor(blocking: Callable[..., Any]) -> Callable[..., Coroutine[Any, Any, Any]]:
    @functools.wraps(blocking)
    async def awaitable(*args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(None, functools.partial(blocking, *args, **kwargs))

    return awaitable
