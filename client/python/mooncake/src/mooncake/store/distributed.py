"""The store object that engines use."""

from __future__ import annotations

from .ranges import Ranges
from .removal import Removal
from .safetensors import Safetensors
from .segments import Segments
from .sessions import Sessions
from .unsupported import UnsupportedCalls


class MooncakeDistributedStore(Safetensors, Sessions, Ranges, Removal, Segments, UnsupportedCalls):
    """A connection to the pool, and the memory that this process adds to it.

    `setup` opens it. `close`, or dropping the object, unmounts the memory. Calls before and after answer -600. All
    calls may be made from several threads at once; none of them holds the interpreter's lock while it waits.
    """
