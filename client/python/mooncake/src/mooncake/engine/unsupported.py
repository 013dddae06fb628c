"""Names of upstream's transfer engine without a counterpart here. Each raises NotImplementedError when it is used."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import NoReturn


class Missing(NotImplementedError):
    """A name of upstream's transfer engine without a counterpart here."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"mooncake.engine.{name}: the transfer engine of mc-kvcache-mooncake copies memory of hosts over TCP, and no"
            " more. Install mooncake-transfer-engine into a directory of its own, and put it behind this package on PYTHONPATH"
        )


def missing(name: str) -> Callable[..., NoReturn]:
    """A function that raises `Missing`."""

    def refuse(*args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise Missing(name)

    refuse.__name__ = name.rpartition(".")[2]
    refuse.__qualname__ = name
    return refuse


class _MissingType:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise Missing(type(self).__name__)


class SharedSegment(_MissingType):
    """Memory that upstream shares between ranks."""

    create = staticmethod(missing("SharedSegment.create"))

    @staticmethod
    def supported(mmap: bool = True, host_register: bool = False) -> bool:
        """False."""
        return False


class RpcInterface(_MissingType):
    """Upstream's calls between processes."""


CoroRPCInterface = RpcInterface


class ReceivedData(_MissingType):
    """Part of `RpcInterface`."""


class ReceivedTensor(_MissingType):
    """Part of `RpcInterface`."""


class ScatterTransferTicket(_MissingType):
    """Part of upstream's scattered transfers."""


class ScatterTransferCompletionStatus(enum.Enum):
    """State of a scattered transfer."""

    COMPLETED = 0
    FAILED_DRAINED = 1
    COMPLETION_UNKNOWN = 2


create_rpc_client = missing("create_rpc_client")
create_rpc_server = missing("create_rpc_server")

# Transports of this build: none, so engines don't choose it.
SUPPORT_CUDA = False
SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_INTRA_NVLINK = False
SUPPORT_MNNVL = False
SUPPORT_MULTI_PROTOCOL = False
SUPPORT_MUSA = False
