"""The compiled part of the package: see client/python/src."""

from collections.abc import Sequence
from typing import Any, Literal, Self, SupportsIndex, final

from typing_extensions import Buffer, disjoint_base

__version__: str
__all__ = [
    "BufferHandle",
    "Client",
    "Engine",
    "Export",
    "GetSession",
    "ListPosition",
    "Memory",
    "PutOptions",
    "PutSession",
    "Queue",
    "Store",
    "__version__",
    "allocate",
    "codes",
    "gpu_of",
    "next_logs",
    "parse_size",
    "start_logs",
    "stop_logs",
    "stop_stores",
    "wait_for_stream",
]

_Key = str | bytes
_Numbers = Sequence[SupportsIndex] | Sequence[Sequence[SupportsIndex]]

def allocate(length: int) -> Memory: ...
def gpu_of(address: int) -> int | None: ...
def codes() -> dict[str, int]: ...
def next_logs(timeout: float) -> tuple[list[tuple[int, str, str]], int]: ...
def parse_size(text: str) -> int: ...
def start_logs(level: int) -> None: ...
def stop_logs() -> None: ...
def stop_stores(stores: Sequence[Store], timeout: float) -> None: ...
def wait_for_stream(address: int, stream: int) -> None: ...

@disjoint_base
class Memory:
    """Writable bytes, with an address for calls that take raw memory."""

    @property
    def address(self) -> int: ...
    @property
    def exports(self) -> int: ...
    @property
    def released(self) -> bool: ...
    def release(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_error: object) -> None: ...
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __release_buffer__(self, buffer: memoryview, /) -> None: ...

@final
class BufferHandle(Memory):
    """The memory of a value, under the names that Mooncake's callers know."""

    def ptr(self) -> int: ...
    def size(self) -> int: ...

@final
class Export:
    """The buffer of an object, held in its place until this is dropped."""

    def __new__(cls, object: Buffer, writable: bool = False) -> Export: ...
    @property
    def address(self) -> int: ...
    @property
    def length(self) -> int: ...

@final
class PutOptions:
    """Options of puts."""

    def __new__(
        cls,
        *,
        upsert: bool = False,
        replicas: int = 1,
        strict: bool = False,
        timeout: float = 30.0,
        preferred: Sequence[str] = ...,
        near: str = "any",
        data_type: int = 0,
        group: _Key | None = None,
        pin: str = "preserve",
        soft_pin: float | None = None,
    ) -> PutOptions: ...

@final
class Queue:
    """Results of calls that were started with it."""

    def __new__(cls) -> Queue: ...
    def fileno(self) -> int: ...
    def drain(self) -> list[tuple[int, bool, Any, BaseException | None]]: ...
    def cancel(self, number: int) -> None: ...
    def __len__(self) -> int: ...

@final
class Engine:
    """One end of transfers between processes."""

    def __new__(cls, host: str, timeout: float) -> Engine: ...
    @property
    def port(self) -> int: ...
    def register(self, address: int, length: int, shared: bool = True) -> None: ...
    def unregister(self, address: int) -> None: ...
    def holds(self, address: int, length: int) -> bool: ...
    def first_of(self, host: str, port: int) -> int | None: ...
    def transfer(self, host: str, port: int, write: bool, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> None: ...
    def submit(self, host: str, port: int, write: bool, local: Sequence[int], remote: Sequence[int], lengths: Sequence[int]) -> int: ...
    def is_done(self, number: int) -> bool: ...
    def wait(self, number: int) -> None: ...
    def probe(self, host: str, port: int) -> None: ...
    def notify(self, host: str, port: int, name: str, message: str) -> None: ...
    def notices(self) -> list[tuple[str, str]]: ...
    def close(self) -> None: ...

@final
class Store:
    """Memory of this process that is lent to the pool."""

    def __new__(
        cls,
        masters: str,
        segments: Sequence[int],
        *,
        name: str | None = None,
        advertise: str | None = None,
        listen: str = "0.0.0.0:0",
        data_dir: str | None = None,
        transports: str = "auto",
        rdma_devices: str = "",
        shared_memory: str = "auto",
    ) -> Store: ...
    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def address(self) -> str: ...
    def wait_mounted(self, timeout: float) -> bool: ...
    def mount(self, size: int, timeout: float = 10.0) -> int: ...
    def unmount(self, number: int, timeout: float = 10.0) -> None: ...
    def segments(self) -> list[tuple[int, int]]: ...
    def stop(self, timeout: float = 2.0) -> None: ...

@final
class GetSession:
    """One version of an object that is read range by range."""

    @property
    def size(self) -> int: ...
    @property
    def version(self) -> str: ...
    def close(self) -> None: ...

@final
class PutSession:
    """An object that is put range by range."""

    @property
    def size(self) -> int: ...
    @property
    def version(self) -> str: ...

@final
class ListPosition:
    """Position in a listing of keys."""

@final
class Client:
    """A client of one cluster and one tenant. With a queue, a call returns its number at once."""

    def __new__(
        cls,
        masters: str,
        *,
        tenant: str = "",
        local_cache: int = 268435456,
        transports: str = "auto",
        rdma_devices: str = "",
        shared_memory: str = "same-uid",
        connect_timeout: float = 0.3,
        leader_timeout: float = 1.0,
        call_timeout: float = 5.0,
        get_timeout: float = 10.0,
        require_leader: bool = False,
        publish_local: bool = False,
        checksum: bool = True,
        store: Store | None = None,
        codes: bool = False,
    ) -> Client: ...
    def put(
        self,
        keys: Sequence[_Key],
        values: Sequence[Buffer | Sequence[Buffer]],
        options: PutOptions | None = None,
        groups: Sequence[_Key] | None = None,
        *,
        queue: Queue | None = None,
    ) -> Any: ...
    def put_from(
        self,
        keys: Sequence[_Key],
        addresses: _Numbers,
        sizes: _Numbers,
        options: PutOptions | None = None,
        groups: Sequence[_Key] | None = None,
        *,
        queue: Queue | None = None,
    ) -> Any: ...
    def get(self, keys: Sequence[_Key], *, queue: Queue | None = None) -> Any: ...
    def get_owned(self, keys: Sequence[_Key], *, queue: Queue | None = None) -> Any: ...
    def get_into(self, keys: Sequence[_Key], addresses: _Numbers, sizes: _Numbers, *, queue: Queue | None = None) -> Any: ...
    def get_ranges_into(
        self,
        keys: Sequence[_Key],
        addresses: _Numbers,
        sizes: _Numbers,
        offsets: _Numbers,
        *,
        queue: Queue | None = None,
    ) -> Any: ...
    def exist(self, keys: Sequence[_Key], lease: bool = True, *, queue: Queue | None = None) -> Any: ...
    def size(self, keys: Sequence[_Key], *, queue: Queue | None = None) -> Any: ...
    def remove(self, keys: Sequence[_Key], force: bool = False, *, queue: Queue | None = None) -> Any: ...
    def remove_all(self, force: bool = False, *, queue: Queue | None = None) -> Any: ...
    def remove_by_regex(self, pattern: str, force: bool = False, *, queue: Queue | None = None) -> Any: ...
    def drop_replicas(self, keys: Sequence[_Key], store: str, *, queue: Queue | None = None) -> Any: ...
    def describe(self, keys: Sequence[_Key], *, queue: Queue | None = None) -> Any: ...
    def list_keys(
        self,
        prefix: _Key | None = None,
        position: ListPosition | None = None,
        limit: int = 0,
        *,
        queue: Queue | None = None,
    ) -> Any: ...
    def open_gets(self, keys: Sequence[_Key], *, queue: Queue | None = None) -> Any: ...
    def read_into(
        self,
        sessions: Sequence[GetSession],
        addresses: _Numbers,
        sizes: _Numbers,
        offsets: _Numbers,
        *,
        queue: Queue | None = None,
    ) -> Any: ...
    def open_puts(
        self,
        keys: Sequence[_Key],
        sizes: Sequence[int],
        options: PutOptions | None = None,
        groups: Sequence[_Key] | None = None,
        *,
        queue: Queue | None = None,
    ) -> Any: ...
    def write_from(
        self,
        sessions: Sequence[PutSession],
        addresses: _Numbers,
        sizes: _Numbers,
        offsets: _Numbers,
        *,
        queue: Queue | None = None,
    ) -> Any: ...
    def finish(self, sessions: Sequence[PutSession], *, queue: Queue | None = None) -> Any: ...
    def abort(self, sessions: Sequence[PutSession], *, queue: Queue | None = None) -> Any: ...
    def register(self, address: int, length: int) -> None: ...
    def unregister(self, address: int) -> None: ...
    @property
    def mode(self) -> Literal["connected", "local-only"]: ...
    @property
    def health(self) -> Literal["healthy", "no-leader", "closed"]: ...
    @property
    def last_error(self) -> str | None: ...
    def stats(self) -> dict[str, int]: ...
    def transports(self) -> list[dict[str, Any]]: ...
    def rdma(self) -> tuple[list[str], str | None]: ...
    def close(self) -> None: ...
