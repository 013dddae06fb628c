"""A transfer engine over TCP: copies memory of hosts between processes, with the calls of Mooncake's."""

from __future__ import annotations

import ctypes
import enum
import json
import logging
import mmap
import os
import weakref
from collections.abc import Callable, Sequence
from http.client import HTTPException
from typing import TypeAlias

from mc import _native
from mooncake._addresses import split_host_port

from .directory import Directory, NoPeer, directory
from .unsupported import missing

_log = logging.getLogger(__name__)

OK = 0
# Upstream's codes (mooncake-transfer-engine/include/error.h).
INVALID_ARGUMENT = -1
NOT_REGISTERED = -3
OVERLAPPED = -7
SOCKET = -102
NO_BATCH = 0

# RDMA is the engines' default. Its peers are reached over TCP instead.
_PROTOCOLS = frozenset({"", "tcp", "rdma"})
_TIMEOUT_SECONDS = 30
_SHORTEST_TIMEOUT_SECONDS = 5


class TransferOpcode(enum.Enum):
    """Direction of a transfer."""

    Read = 0
    Write = 1

    def __int__(self) -> int:
        return int(self.value)

    def __index__(self) -> int:
        return int(self.value)


# The class below has an attribute of this name.
_Opcode: TypeAlias = TransferOpcode

Read = TransferOpcode.Read
Write = TransferOpcode.Write


class TransferNotify:
    """Words that reach the peer after the bytes of a transfer."""

    def __init__(self, name: str = "", msg: str = "") -> None:
        self.name = name
        self.msg = msg


class InnerTransferEngine:
    """Result of `get_engine`. The store accepts it, and opens connections of its own."""


class TransferEngine:
    """Registers memory of this process, lets peers read and write it, and reads and writes theirs.

    Every process that can connect to its port may do both, as with upstream's engine. Calls return 0, or a negative code, and then
    log the reason. Any thread may make them.
    """

    def __init__(self) -> None:
        self._inner = InnerTransferEngine()
        self._engine: _native.Engine | None = None
        self._directory: Directory | None = None
        self._buffers: dict[int, mmap.mmap] = {}

    def __del__(self) -> None:
        # Before the buffers, which peers reach until then.
        if (engine := getattr(self, "_engine", None)) is not None:
            engine.close()

    def initialize(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, /) -> int:
        """Listen on a port of `local_hostname`, and announce it to a metadata server if there is one."""
        del device_name
        if self._engine is not None:
            return OK
        if protocol not in _PROTOCOLS:
            _log.error("cannot transfer by %r: this engine has TCP. Install mooncake-transfer-engine for the other fabrics", protocol)
            return INVALID_ARGUMENT
        try:
            found = directory(metadata_server)
            host = found.address_of(split_host_port(local_hostname)[0])
            engine = _native.Engine(host, _timeout())
            _announce(found, local_hostname, host, engine)
        except (NoPeer, OSError, ValueError, RuntimeError, HTTPException) as error:
            _log.error("cannot start the transfer engine of %s: %s", local_hostname, error)
            return INVALID_ARGUMENT
        # Also when the interpreter ends, which frees memory that peers reach.
        weakref.finalize(self, _end, engine, found, local_hostname, host, os.getpid())
        self._engine, self._directory = engine, found
        return OK

    def initialize_ext(self, local_hostname: str, metadata_server: str, protocol: str, device_name: str, metadata_type: str, /) -> int:
        """`initialize` with the scheme of the metadata server beside its address."""
        if metadata_type and metadata_server != "P2PHANDSHAKE" and "://" not in metadata_server:
            metadata_server = f"{metadata_type}://{metadata_server}"
        return self.initialize(local_hostname, metadata_server, protocol, device_name)

    def get_rpc_port(self) -> int:
        """The port, or 0 before `initialize`."""
        return 0 if self._engine is None else self._engine.port

    def get_engine(self) -> InnerTransferEngine:
        """What `MooncakeDistributedStore.setup` accepts as `engine`."""
        return self._inner

    def get_local_topology(self, device_name: str | None = None) -> str:
        """Devices of this host that transfers use: none."""
        del device_name
        return json.dumps({"cpu:0": [[], []]})

    # Memory.

    def register_memory(self, buffer_addr: int, capacity: int, location: str = "*", *, remote_accessible: bool = True) -> int:
        """Let transfers use memory of the host. -7 if part of it is registered already."""
        del location

        def register(engine: _native.Engine) -> int:
            try:
                engine.register(buffer_addr, capacity, remote_accessible)
            except (BufferError, ValueError, NotImplementedError) as error:
                _log.error("cannot register memory: %s", error)
                return OVERLAPPED if isinstance(error, BufferError) else INVALID_ARGUMENT
            return OK

        return self._with_engine("register memory", register)

    def unregister_memory(self, buffer_addr: int, /) -> int:
        """End the use of memory by peers, and by transfers that were begun after it was registered. -3 if none is registered there."""

        def unregister(engine: _native.Engine) -> int:
            try:
                engine.unregister(buffer_addr)
            except ValueError as error:
                _log.error("cannot unregister memory: %s", error)
                return NOT_REGISTERED
            return OK

        return self._with_engine("unregister memory", unregister)

    def batch_register_memory(self, buffer_addresses: Sequence[int], capacities: Sequence[int], location: str = "*") -> int:
        """`register_memory` of all, or of none."""
        if len(buffer_addresses) != len(capacities):
            _log.error("cannot register memory: %d addresses and %d capacities", len(buffer_addresses), len(capacities))
            return INVALID_ARGUMENT
        registered: list[int] = []
        for address, capacity in zip(buffer_addresses, capacities, strict=True):
            code = self.register_memory(address, capacity, location)
            if code != OK:
                for one in registered:
                    self.unregister_memory(one)
                return code
            registered.append(address)
        return OK

    def batch_unregister_memory(self, buffer_addresses: Sequence[int], /) -> int:
        """`unregister_memory` of all, and the first error."""
        codes = [self.unregister_memory(address) for address in buffer_addresses]
        return next((code for code in codes if code != OK), OK)

    def allocate_managed_buffer(self, length: int, /) -> int:
        """Address of so many new bytes, which are registered; 0 if there are none."""
        try:
            # Not shared with a forked child.
            memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError, OverflowError) as error:
            _log.error("cannot allocate %d bytes: %s", length, error)
            return 0
        address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        if self.register_memory(address, length) != OK:
            return 0
        self._buffers[address] = memory
        return address

    def free_managed_buffer(self, buffer_addr: int, length: int, /) -> int:
        """Free what `allocate_managed_buffer` returned."""
        del length
        # It is unmapped at the end of the call, and by this call alone.
        memory = self._buffers.pop(buffer_addr, None)
        if memory is None:
            _log.error("cannot free %#x: it was not allocated here, or has been freed", buffer_addr)
            return INVALID_ARGUMENT
        return self.unregister_memory(buffer_addr)

    def write_bytes_to_buffer(self, dest_address: int, src: bytes | str, length: int, /) -> int:
        """Copy bytes into registered memory of this process."""
        source = src.encode() if isinstance(src, str) else src
        if length > len(source) or not self._holds(dest_address, length):
            _log.error(
                "cannot write %d bytes to %#x: they don't lie in one piece of registered memory, or are too few", length, dest_address
            )
            return INVALID_ARGUMENT
        ctypes.memmove(dest_address, source, length)
        return OK

    def read_bytes_from_buffer(self, source_address: int, length: int, /) -> bytes:
        """Bytes of registered memory of this process; none if it is not registered."""
        if not self._holds(source_address, length):
            _log.error("cannot read %d bytes from %#x: they don't lie in one piece of registered memory", length, source_address)
            return b""
        return ctypes.string_at(source_address, length)

    def _holds(self, address: int, length: int) -> bool:
        return self._engine is not None and self._engine.holds(address, length)

    # Transfers. Hints name fabrics and cards, of which there are none.

    def transfer_sync_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = "", nic_hint: str = ""
    ) -> int:
        """Write memory of the peer."""
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Write)

    def transfer_sync_read(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = "", nic_hint: str = ""
    ) -> int:
        """Read memory of the peer."""
        return self.transfer_sync(target_hostname, buffer, peer_buffer_address, length, Read)

    def batch_transfer_sync_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
        nic_hint: str = "",
    ) -> int:
        """Write several pieces of the peer's memory."""
        return self.batch_transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_sync_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
        nic_hint: str = "",
    ) -> int:
        """Read several pieces of the peer's memory."""
        return self.batch_transfer_sync(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def transfer_sync(
        self,
        target_hostname: str,
        buffer: int,
        peer_buffer_address: int,
        length: int,
        opcode: _Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
        nic_hint: str = "",
    ) -> int:
        """Copy one piece, and tell the peer afterwards."""
        return self.batch_transfer_sync(target_hostname, [buffer], [peer_buffer_address], [length], opcode, notify)

    def batch_transfer_sync(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: _Opcode,
        notify: TransferNotify | None = None,
        transport_hint: str = "",
        nic_hint: str = "",
    ) -> int:
        """Copy several pieces, and tell the peer afterwards."""

        _check(opcode)

        def transfer(engine: _native.Engine, host: str, port: int) -> int:
            engine.transfer(host, port, opcode is Write, buffers, peer_buffer_addresses, lengths)
            if notify is not None:
                engine.notify(host, port, notify.name, notify.msg)
            return OK

        return self._with_peer("transfer", target_hostname, transfer, INVALID_ARGUMENT)

    def transfer_submit_write(
        self, target_hostname: str, buffer: int, peer_buffer_address: int, length: int, transport_hint: str = "", nic_hint: str = ""
    ) -> int:
        """Start to write memory of the peer. Number for `transfer_check_status`, or 0."""
        return self.batch_transfer_async(target_hostname, [buffer], [peer_buffer_address], [length], Write)

    def batch_transfer_async_write(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
        nic_hint: str = "",
    ) -> int:
        """Start to write several pieces of the peer's memory. Number for `transfer_check_status`, or 0."""
        return self.batch_transfer_async(target_hostname, buffers, peer_buffer_addresses, lengths, Write)

    def batch_transfer_async_read(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        transport_hint: str = "",
        nic_hint: str = "",
    ) -> int:
        """Start to read several pieces of the peer's memory. Number for `transfer_check_status`, or 0."""
        return self.batch_transfer_async(target_hostname, buffers, peer_buffer_addresses, lengths, Read)

    def batch_transfer_async(
        self,
        target_hostname: str,
        buffers: Sequence[int],
        peer_buffer_addresses: Sequence[int],
        lengths: Sequence[int],
        opcode: _Opcode,
        transport_hint: str = "",
        nic_hint: str = "",
    ) -> int:
        """Start to copy several pieces. Number for `transfer_check_status` or `get_batch_transfer_status`, or 0.

        The memory has to stay until one of the two has told the end.
        """

        _check(opcode)

        def submit(engine: _native.Engine, host: str, port: int) -> int:
            return engine.submit(host, port, opcode is Write, buffers, peer_buffer_addresses, lengths)

        return self._with_peer("start a transfer", target_hostname, submit, NO_BATCH)

    def transfer_check_status(self, batch_id: int, /) -> int:
        """State of a transfer: 1 done, 0 under way, -1 failed. The number ends with the transfer."""
        return self._with_engine("look at a transfer", lambda engine: int(engine.is_done(batch_id)))

    def get_batch_transfer_status(self, batch_ids: Sequence[int], /) -> int:
        """Wait for all: 0 once they are done, -1 if one failed."""

        def wait(engine: _native.Engine) -> int:
            code = OK
            for batch_id in batch_ids:
                try:
                    engine.wait(batch_id)
                except (RuntimeError, ValueError) as error:
                    _log.error("a transfer failed: %s", error)
                    code = INVALID_ARGUMENT
            return code

        return self._with_engine("wait for transfers", wait)

    # Peers.

    def get_first_buffer_address(self, segment_name: str, /) -> int:
        """Address of the memory that a peer registered first, or 0."""

        def first(engine: _native.Engine, host: str, port: int) -> int:
            return engine.first_of(host, port) or 0

        return self._with_peer("find the memory", segment_name, first, 0)

    def send_probe(self, peer_server_name: str) -> int:
        """0 if the peer answers, -102 if it doesn't."""

        def probe(engine: _native.Engine, host: str, port: int) -> int:
            engine.probe(host, port)
            return OK

        return self._with_peer("probe", peer_server_name, probe, SOCKET)

    def get_notifies(self) -> list[TransferNotify]:
        """Words that came with transfers, each once."""
        if self._engine is None:
            return []
        return [TransferNotify(name, message) for name, message in self._engine.notices()]

    def warmup_efa_segment(self, segment_name: str) -> int:
        """0: there is nothing to warm up."""
        del segment_name
        return OK

    def _with_engine(self, what: str, call: Callable[[_native.Engine], int]) -> int:
        if self._engine is None:
            _log.error("cannot %s: call initialize first", what)
            return INVALID_ARGUMENT
        try:
            return call(self._engine)
        except (RuntimeError, ValueError) as error:
            _log.error("cannot %s: %s", what, error)
            return INVALID_ARGUMENT

    def _with_peer(self, what: str, name: str, call: Callable[[_native.Engine, str, int], int], failed: int) -> int:
        engine, names = self._engine, self._directory
        if engine is None or names is None:
            _log.error("cannot %s: call initialize first", what)
            return failed
        try:
            return call(engine, *names.find(name))
        except (NoPeer, ValueError) as error:
            _log.error("cannot %s: %s", what, error)
        except RuntimeError as error:
            # It may have another address when it comes back.
            names.forget(name)
            _log.error("cannot %s: %s", what, error)
        return failed

    TransferOpcode = TransferOpcode

    batch_transfer_async_read_arrays = missing("TransferEngine.batch_transfer_async_read_arrays")
    batch_transfer_async_write_arrays = missing("TransferEngine.batch_transfer_async_write_arrays")
    batch_transfer_read_on_cuda = missing("TransferEngine.batch_transfer_read_on_cuda")
    batch_transfer_sync_read_arrays = missing("TransferEngine.batch_transfer_sync_read_arrays")
    batch_transfer_sync_read_pages = missing("TransferEngine.batch_transfer_sync_read_pages")
    batch_transfer_sync_write_arrays = missing("TransferEngine.batch_transfer_sync_write_arrays")
    batch_transfer_sync_write_pages = missing("TransferEngine.batch_transfer_sync_write_pages")
    batch_transfer_write_on_cuda = missing("TransferEngine.batch_transfer_write_on_cuda")
    get_engine_ptr = missing("TransferEngine.get_engine_ptr")
    scatter_transfer_sync_read_with_ticket = missing("TransferEngine.scatter_transfer_sync_read_with_ticket")
    scatter_transfer_sync_write_with_ticket = missing("TransferEngine.scatter_transfer_sync_write_with_ticket")
    submit_scatter_read = missing("TransferEngine.submit_scatter_read")
    submit_scatter_write = missing("TransferEngine.submit_scatter_write")
    transfer_read_on_cuda = missing("TransferEngine.transfer_read_on_cuda")
    transfer_write_on_cuda = missing("TransferEngine.transfer_write_on_cuda")


def _check(opcode: TransferOpcode) -> None:
    # As upstream does: a number that stands for the other direction would overwrite the source.
    if not isinstance(opcode, TransferOpcode):
        raise TypeError(f"the opcode is TransferOpcode.Read or TransferOpcode.Write, not {opcode!r}")


def _announce(names: Directory, name: str, host: str, engine: _native.Engine) -> None:
    """Announce an engine. A record of one that is gone, such as the same process before it was started again, gives way."""
    try:
        names.announce(name, host, engine.port)
    except PermissionError:
        names.forget(name)
        other = names.find(name)
        try:
            engine.probe(*other)
        except RuntimeError:
            names.withdraw(name, *other)
            names.announce(name, host, engine.port)
            return
        finally:
            names.forget(name)
        raise


def _end(engine: _native.Engine, names: Directory, name: str, host: str, process: int) -> None:
    # A forked child ends, too.
    if os.getpid() == process:
        names.withdraw(name, host, engine.port)
        engine.close()


def _timeout() -> float:
    text = os.environ.get("MC_TRANSFER_TIMEOUT", "")
    if not text:
        return _TIMEOUT_SECONDS
    try:
        return max(_SHORTEST_TIMEOUT_SECONDS, int(text))
    except ValueError:
        raise ValueError(f"MC_TRANSFER_TIMEOUT={text}: set it to a number of seconds") from None
