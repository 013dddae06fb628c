"""A transfer engine that starts and moves nothing.

SGLang's HiCache creates one before its store, checks that `initialize` succeeds, announces its port, and hands the
result of `get_engine` to `setup`. That much is here. Transfers between engines are not part of the pool.
"""

from __future__ import annotations

import enum
import logging
import socket
from collections.abc import Callable
from typing import NoReturn

_log = logging.getLogger(__name__)

OK = 0
INVALID_ARGUMENT = -1


class TransferOpcode(enum.Enum):
    """Direction of a transfer."""

    Read = 0
    Write = 1

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


Read = TransferOpcode.Read
Write = TransferOpcode.Write


class TransferNotify:
    """Message that upstream sends with a transfer."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg


class InnerTransferEngine:
    """Result of `get_engine`. The store accepts it, and opens connections of its own."""


class Missing(NotImplementedError):
    """A name of upstream's transfer engine without a counterpart here."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"mooncake.engine.{name}: mc-kvcache-mooncake has the store, and no transfers between engines. Install"
            " mooncake-transfer-engine into a directory of its own, and put it behind this package on PYTHONPATH"
        )


def _missing(name: str) -> Callable[..., NoReturn]:
    def refuse(*args: object, **kwargs: object) -> NoReturn:
        """NotImplementedError."""
        raise Missing(name)

    refuse.__name__ = name.rpartition(".")[2]
    refuse.__qualname__ = name
    return refuse


class TransferEngine:
    """Holds a port and an identity. Every call that moves or announces memory raises NotImplementedError."""

    TransferOpcode = TransferOpcode

    def __init__(self) -> None:
        self._inner = InnerTransferEngine()
        self._reserved: socket.socket | None = None

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, /) -> int:
        """Reserve a port on this host. 0, or negative if there is none."""
        del metadata_server, protocol, device_name
        if self._reserved is not None:
            return OK
        family = socket.AF_INET6 if local_hostname.count(":") > 1 else socket.AF_INET
        # Bound and never listening: nobody else gets the port, and whoever connects to it is refused at once.
        reserved = socket.socket(family, socket.SOCK_STREAM)
        try:
            reserved.bind(("", 0))
        except OSError as error:
            _log.error("cannot reserve a port for the transfer engine of %s: %s", local_hostname, error)
            reserved.close()
            return INVALID_ARGUMENT
        self._reserved = reserved
        return OK

    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str, /) -> int:
        """`initialize` with the kind of metadata server, which is not needed."""
        del metadata_type
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """The reserved port, or 0 before `initialize`."""
        return 0 if self._reserved is None else int(self._reserved.getsockname()[1])

    def get_engine(self) -> InnerTransferEngine:
        """What `MooncakeDistributedStore.setup` accepts as `engine`."""
        return self._inner

    allocate_managed_buffer = _missing("TransferEngine.allocate_managed_buffer")
    batch_register_memory = _missing("TransferEngine.batch_register_memory")
    batch_transfer_async = _missing("TransferEngine.batch_transfer_async")
    batch_transfer_async_read = _missing("TransferEngine.batch_transfer_async_read")
    batch_transfer_async_read_arrays = _missing("TransferEngine.batch_transfer_async_read_arrays")
    batch_transfer_async_write = _missing("TransferEngine.batch_transfer_async_write")
    batch_transfer_async_write_arrays = _missing("TransferEngine.batch_transfer_async_write_arrays")
    batch_transfer_read_on_cuda = _missing("TransferEngine.batch_transfer_read_on_cuda")
    batch_transfer_sync = _missing("TransferEngine.batch_transfer_sync")
    batch_transfer_sync_read = _missing("TransferEngine.batch_transfer_sync_read")
    batch_transfer_sync_read_arrays = _missing("TransferEngine.batch_transfer_sync_read_arrays")
    batch_transfer_sync_read_pages = _missing("TransferEngine.batch_transfer_sync_read_pages")
    batch_transfer_sync_write = _missing("TransferEngine.batch_transfer_sync_write")
    batch_transfer_sync_write_arrays = _missing("TransferEngine.batch_transfer_sync_write_arrays")
    batch_transfer_sync_write_pages = _missing("TransferEngine.batch_transfer_sync_write_pages")
    batch_transfer_write_on_cuda = _missing("TransferEngine.batch_transfer_write_on_cuda")
    batch_unregister_memory = _missing("TransferEngine.batch_unregister_memory")
    free_managed_buffer = _missing("TransferEngine.free_managed_buffer")
    get_batch_transfer_status = _missing("TransferEngine.get_batch_transfer_status")
    get_engine_ptr = _missing("TransferEngine.get_engine_ptr")
    get_first_buffer_address = _missing("TransferEngine.get_first_buffer_address")
    get_local_topology = _missing("TransferEngine.get_local_topology")
    get_notifies = _missing("TransferEngine.get_notifies")
    read_bytes_from_buffer = _missing("TransferEngine.read_bytes_from_buffer")
    register_memory = _missing("TransferEngine.register_memory")
    scatter_transfer_sync_read_with_ticket = _missing("TransferEngine.scatter_transfer_sync_read_with_ticket")
    scatter_transfer_sync_write_with_ticket = _missing("TransferEngine.scatter_transfer_sync_write_with_ticket")
    send_probe = _missing("TransferEngine.send_probe")
    submit_scatter_read = _missing("TransferEngine.submit_scatter_read")
    submit_scatter_write = _missing("TransferEngine.submit_scatter_write")
    transfer_check_status = _missing("TransferEngine.transfer_check_status")
    transfer_read_on_cuda = _missing("TransferEngine.transfer_read_on_cuda")
    transfer_submit_write = _missing("TransferEngine.transfer_submit_write")
    transfer_sync = _missing("TransferEngine.transfer_sync")
    transfer_sync_read = _missing("TransferEngine.transfer_sync_read")
    transfer_sync_write = _missing("TransferEngine.transfer_sync_write")
    transfer_write_on_cuda = _missing("TransferEngine.transfer_write_on_cuda")
    unregister_memory = _missing("TransferEngine.unregister_memory")
    warmup_efa_segment = _missing("TransferEngine.warmup_efa_segment")
    write_bytes_to_buffer = _missing("TransferEngine.write_bytes_to_buffer")

    def __del__(self) -> None:
        reserved = getattr(self, "_reserved", None)
        if reserved is not None:
            reserved.close()


class _MissingType:
    def __init__(self, *args: object, **kwargs: object) -> None:
        raise Missing(type(self).__name__)


class SharedSegment(_MissingType):
    """Memory that upstream shares between ranks."""

    create = staticmethod(_missing("SharedSegment.create"))

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


create_rpc_client = _missing("create_rpc_client")
create_rpc_server = _missing("create_rpc_server")

# Transports of this build: none, so engines don't choose it.
SUPPORT_CUDA = False
SUPPORT_EFA = False
SUPPORT_HIP = False
SUPPORT_INTRA_NVLINK = False
SUPPORT_MNNVL = False
SUPPORT_MULTI_PROTOCOL = False
SUPPORT_MUSA = False
