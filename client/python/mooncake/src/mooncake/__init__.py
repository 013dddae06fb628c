"""Mooncake's Python package over an mc pool.

`mooncake.store` is ours. Modules that we don't have come from an upstream installation further down `sys.path`, if
there is one.
"""

from __future__ import annotations

from pathlib import Path
from pkgutil import extend_path
from typing import TYPE_CHECKING

from ._coexistence import refuse_shared_directory

__path__ = extend_path(__path__, __name__)

refuse_shared_directory(Path(__file__).parent)

if TYPE_CHECKING:
    from .store import BufferPool, MooncakeDistributedStore, RegisteredBufferPool

__all__ = ["BufferPool", "MooncakeDistributedStore", "RegisteredBufferPool"]


def __getattr__(name: str) -> object:
    # On first use, so that `import mooncake` does not load the native module.
    if name in __all__:
        from . import store

        return getattr(store, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(set(globals()) | set(__all__))
