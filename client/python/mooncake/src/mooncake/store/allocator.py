"""Memory that stores on this host read and write without a copy, and NUMA placement."""

from __future__ import annotations

import logging
import os
import threading
from pathlib import Path
from typing import NoReturn

from mc import McError, _native

_log = logging.getLogger(__name__)
# Protects the field below. Renewed in a forked child, where a thread that the child does not have may hold it.
_guard = threading.Lock()
_allocated: dict[int, _native.Memory] = {}


class MooncakeHostMemAllocator:
    """Allocates shareable memory of this process. Every client uses it, also those that are set up later."""

    def alloc(self, size: int) -> int:
        """Address of `size` new bytes, or 0 if there are none."""
        try:
            memory = _native.allocate(size)
        except (MemoryError, ValueError, McError) as error:
            _log.error("cannot allocate %d bytes of shareable memory: %s", size, error)
            return 0
        with _guard:
            _allocated[memory.address] = memory
        return memory.address

    def free(self, ptr: int) -> int:
        """Frees the memory at `ptr`: 0, or -1 if `alloc` did not return that address."""
        with _guard:
            memory = _allocated.pop(ptr, None)
        if memory is None:
            _log.error("cannot free %#x: it was not allocated here, or has been freed", ptr)
            return -1
        memory.release()
        return 0


def bind_to_numa_node(node: int) -> None:
    """Bind the calling thread to the processors of NUMA node `node`, so that memory it touches first is near them."""
    path = Path(f"/sys/devices/system/node/node{node}/cpulist")
    try:
        processors = _parse_processors(path.read_text(encoding="ascii"))
        os.sched_setaffinity(0, processors)
    except (OSError, ValueError) as error:
        _log.warning("cannot bind to NUMA node %d: %s", node, error)


def _parse_processors(text: str) -> set[int]:
    """Numbers of a list in the kernel's format, such as "0-3,8"."""
    numbers: set[int] = set()
    for part in text.strip().split(","):
        first, _, last = part.partition("-")
        numbers.update(range(int(first), int(last or first) + 1))
    return numbers


def get_alloc_func_addr() -> NoReturn:
    """NotImplementedError: memory is allocated by a method, not by a C function."""
    raise NotImplementedError("there is no C allocation function: use MooncakeHostMemAllocator().alloc(size)")


def get_free_func_addr() -> NoReturn:
    """NotImplementedError: memory is freed by a method, not by a C function."""
    raise NotImplementedError("there is no C function that frees memory: use MooncakeHostMemAllocator().free(ptr)")


def _renew_guard() -> None:
    global _guard
    _guard = threading.Lock()


os.register_at_fork(after_in_child=_renew_guard)
