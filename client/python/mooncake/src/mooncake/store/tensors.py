"""Tensors of torch as objects: whole, and split among the ranks of tensor parallelism."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from mc import _native

from .codes import OK
from .gets import Gets
from .puts import Puts
from .replicate_config import ReplicateConfig
from .shapes import NOT_SET_UP, Keys, Numbers, differ, refuse
from .tensor_layout import SIZE, InvalidLayout, unpack
from .tensor_memory import Source, matches, shards_at, shards_of, source_at, source_of, tensor_at, tensor_over, wait_for

# Stands for a tensor that can't be stored: it takes a place in the call, and answers INVALID_PARAMS.
_NOTHING = Source([], [])


class Tensors(Puts, Gets):
    """Calls for tensors. Puts answer as those of values do, and reads answer None for what can't be read."""

    def put_tensor(self, key: str, tensor: Any) -> int:
        """Store a tensor."""
        return self.batch_put_tensor([key], [tensor])[0]

    def batch_put_tensor(self, keys: Keys, tensors_list: Sequence[Any]) -> list[int]:
        """Store tensors."""
        return self._put_tensors(keys, tensors_list, None, upsert=False)

    def pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        """Store a tensor with options."""
        return self.batch_pub_tensor([key], [tensor], config)[0]

    def batch_pub_tensor(self, keys: Keys, tensors_list: Sequence[Any], config: ReplicateConfig | None = None) -> list[int]:
        """Store tensors with options."""
        return self._put_tensors(keys, tensors_list, config, upsert=False)

    def upsert_tensor(self, key: str, tensor: Any) -> int:
        """Store a tensor in the place of the object, if there is one."""
        return self.batch_upsert_tensor([key], [tensor])[0]

    def batch_upsert_tensor(self, keys: Keys, tensors_list: Sequence[Any]) -> list[int]:
        """`upsert_tensor` for each key."""
        return self._put_tensors(keys, tensors_list, None, upsert=True)

    def upsert_pub_tensor(self, key: str, tensor: Any, config: ReplicateConfig | None = None) -> int:
        """`upsert_tensor` with options."""
        return self.batch_upsert_pub_tensor([key], [tensor], config)[0]

    def batch_upsert_pub_tensor(self, keys: Keys, tensors_list: Sequence[Any], config: ReplicateConfig | None = None) -> list[int]:
        """`upsert_pub_tensor` for each key."""
        return self._put_tensors(keys, tensors_list, config, upsert=True)

    def put_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """Store a buffer that holds the header of a tensor and its elements, as `get_tensor_into` leaves it."""
        return self.batch_put_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_put_tensor_from(self, keys: Keys, buffer_ptrs: Numbers, sizes: Numbers) -> list[int]:
        """`put_tensor_from` for each key."""
        return self._put_tensor_buffers(keys, buffer_ptrs, sizes, upsert=False)

    def upsert_tensor_from(self, key: str, buffer_ptr: int, size: int) -> int:
        """`put_tensor_from` that replaces an object."""
        return self.batch_upsert_tensor_from([key], [buffer_ptr], [size])[0]

    def batch_upsert_tensor_from(self, keys: Keys, buffer_ptrs: Numbers, sizes: Numbers) -> list[int]:
        """`upsert_tensor_from` for each key."""
        return self._put_tensor_buffers(keys, buffer_ptrs, sizes, upsert=True)

    def get_tensor(self, key: str) -> Any:
        """The tensor, or None if there is none."""
        return self.batch_get_tensor([key])[0]

    def batch_get_tensor(self, keys: Keys) -> list[Any]:
        """The tensor of each key, or None."""
        handles = self.batch_get_buffer(keys)
        return [None if handle is None else _read(key, tensor_over, handle) for key, handle in zip(keys, handles, strict=True)]

    def get_tensor_into(self, key: str, buffer_ptr: int, size: int) -> Any:
        """Read header and elements into the buffer. Returns a tensor over it, or None."""
        found = self.batch_get_tensor_into([key], [buffer_ptr], [size])[0]
        return None if isinstance(found, int) else found

    def batch_get_tensor_into(self, keys: Keys, buffer_ptrs: Numbers, sizes: Numbers) -> list[Any]:
        """`get_tensor_into` for each key. Arguments that don't fit together answer INVALID_PARAMS for each."""
        if differ(keys, buffer_ptrs, sizes) or 0 in buffer_ptrs:
            return [*refuse("get_tensor_into", keys, "a null address, or not as many addresses and sizes")]
        if any(_native.gpu_of(address) is not None for address in buffer_ptrs):
            return [*refuse("get_tensor_into", keys, "memory of a GPU has no place for a header: use get_tensor_into_cuda")]
        lengths = self.batch_get_into(keys, buffer_ptrs, sizes)
        return [
            _read(key, tensor_at, address, length) if length > 0 else None
            for key, address, length in zip(keys, buffer_ptrs, lengths, strict=True)
        ]

    def get_tensor_into_cuda(self, key: str, tensor: Any) -> int:
        """Read the elements into a contiguous tensor of the same dtype and shape.

        Returns their bytes, or a negative code.
        """
        return self.batch_get_tensor_into_cuda([key], [tensor])[0]

    def batch_get_tensor_into_cuda(self, keys: Keys, tensors_list: Sequence[Any]) -> list[int]:
        """`get_tensor_into_cuda` for each key."""
        link = self._link
        if link is None:
            return refuse("get_tensor_into_cuda", keys, NOT_SET_UP)
        if differ(keys, tensors_list):
            return refuse("get_tensor_into_cuda", keys, f"{len(tensors_list)} tensors")
        return [
            opened if isinstance(opened, int) else _read_elements(link.client, key, opened, tensor)
            for key, opened, tensor in zip(keys, link.client.open_gets(keys), tensors_list, strict=True)
        ]

    def put_tensor_with_tp(self, key: str, tensor: Any, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        """Store a tensor in `tp_size` even parts: `key_tp_0`, `key_tp_1` and so on."""
        return self.pub_tensor_with_tp(key, tensor, None, tp_rank, tp_size, split_dim)

    def batch_put_tensor_with_tp(
        self, base_keys: Keys, tensors_list: Sequence[Any], tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0
    ) -> list[int]:
        """`put_tensor_with_tp` for each key."""
        return self.batch_pub_tensor_with_tp(base_keys, tensors_list, None, tp_rank, tp_size, split_dim)

    def pub_tensor_with_tp(
        self,
        key: str,
        tensor: Any,
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> int:
        """`put_tensor_with_tp` with options."""
        return self.batch_pub_tensor_with_tp([key], [tensor], config, tp_rank, tp_size, split_dim)[0]

    def batch_pub_tensor_with_tp(
        self,
        base_keys: Keys,
        tensors_list: Sequence[Any],
        config: ReplicateConfig | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`pub_tensor_with_tp` for each key. All parts are stored, whatever the rank."""
        del tp_rank
        if tp_size <= 1:
            return self._put_tensors(base_keys, tensors_list, config, upsert=False)
        if differ(base_keys, tensors_list):
            return refuse("put_tensor", base_keys, f"{len(tensors_list)} tensors")
        repeated = _repeated(config, tp_size)
        parts = [_shards(key, tp_size, shards_of, tensor, tp_size, split_dim) for key, tensor in zip(base_keys, tensors_list, strict=True)]
        return self._put_shards(base_keys, parts, repeated, tp_size)

    def put_tensor_with_tp_from(self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> int:
        """`put_tensor_with_tp` of the tensor in a buffer with header and elements."""
        return self.batch_put_tensor_with_tp_from([key], [buffer_ptr], [size], tp_rank, tp_size, split_dim)[0]

    def batch_put_tensor_with_tp_from(
        self,
        base_keys: Keys,
        buffer_ptrs: Numbers,
        sizes: Numbers,
        tp_rank: int = 0,
        tp_size: int = 1,
        split_dim: int = 0,
    ) -> list[int]:
        """`put_tensor_with_tp_from` for each key."""
        del tp_rank
        if tp_size <= 1:
            return self.batch_put_tensor_from(base_keys, buffer_ptrs, sizes)
        if differ(base_keys, buffer_ptrs, sizes):
            return refuse("put_tensor", base_keys, f"{len(buffer_ptrs)} addresses and {len(sizes)} sizes")
        parts = [
            _shards(key, tp_size, shards_at, address, size, tp_size, split_dim)
            for key, address, size in zip(base_keys, buffer_ptrs, sizes, strict=True)
        ]
        return self._put_shards(base_keys, parts, None, tp_size)

    def get_tensor_with_tp(self, key: str, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        """The part of `tp_rank` of a tensor stored with `put_tensor_with_tp`, or None."""
        del split_dim
        return self.get_tensor(_of_rank(key, tp_rank, tp_size))

    def batch_get_tensor_with_tp(self, base_keys: Keys, tp_rank: int = 0, tp_size: int = 1) -> list[Any]:
        """`get_tensor_with_tp` for each key."""
        return self.batch_get_tensor([_of_rank(key, tp_rank, tp_size) for key in base_keys])

    def get_tensor_with_tp_into(self, key: str, buffer_ptr: int, size: int, tp_rank: int = 0, tp_size: int = 1, split_dim: int = 0) -> Any:
        """`get_tensor_into` of the part of `tp_rank`."""
        del split_dim
        return self.get_tensor_into(_of_rank(key, tp_rank, tp_size), buffer_ptr, size)

    def batch_get_tensor_with_tp_into(
        self, base_keys: Keys, buffer_ptrs: Numbers, sizes: Numbers, tp_rank: int = 0, tp_size: int = 1
    ) -> list[Any]:
        """`get_tensor_with_tp_into` for each key."""
        return self.batch_get_tensor_into([_of_rank(key, tp_rank, tp_size) for key in base_keys], buffer_ptrs, sizes)

    def _put_tensors(self, keys: Keys, tensors: Sequence[Any], config: ReplicateConfig | None, *, upsert: bool) -> list[int]:
        if differ(keys, tensors):
            return refuse("put_tensor", keys, f"{len(tensors)} tensors")
        # Before the tensors are looked at, which may have to be computed first.
        config = copy.deepcopy(config)
        sources = [_source(key, source_of, tensor) for key, tensor in zip(keys, tensors, strict=True)]
        return self._put_sources(keys, sources, config, upsert=upsert)

    def _put_tensor_buffers(self, keys: Keys, addresses: Numbers, sizes: Numbers, *, upsert: bool) -> list[int]:
        if differ(keys, addresses, sizes):
            return refuse("put_tensor_from", keys, f"{len(addresses)} addresses and {len(sizes)} sizes")
        sources = [_source(key, source_at, address, size) for key, address, size in zip(keys, addresses, sizes, strict=True)]
        return self._put_sources(keys, sources, None, upsert=upsert)

    def _put_shards(self, base_keys: Keys, parts: list[list[Source]], config: ReplicateConfig | None, ranks: int) -> list[int]:
        keys = [_of_rank(key, rank, ranks) for key in base_keys for rank in range(ranks)]
        sources = [source for part in parts for source in part]
        codes = self._put_sources(keys, sources, config, upsert=False)
        by_key = (codes[start : start + ranks] for start in range(0, len(codes), ranks))
        return [next((code for code in of_key if code != OK), OK) for of_key in by_key]

    def _put_sources(self, keys: Keys, sources: list[Source], config: ReplicateConfig | None, *, upsert: bool) -> list[int]:
        addresses = [source.addresses for source in sources]
        return self._put_memory(keys, addresses, [source.sizes for source in sources], config, upsert=upsert)


def _of_rank(key: str, rank: int, ranks: int) -> str:
    return f"{key}_tp_{rank}" if ranks > 1 else key


def _source(key: str, make: Callable[..., Source], *arguments: Any) -> Source:
    try:
        return make(*arguments)
    except InvalidLayout as error:
        refuse("put_tensor", [key], f"{key!r}: {error}")
        return _NOTHING


def _shards(key: str, ranks: int, make: Callable[..., list[Source]], *arguments: Any) -> list[Source]:
    try:
        return make(*arguments)
    except InvalidLayout as error:
        refuse("put_tensor", [key], f"{key!r}: {error}")
        return [_NOTHING] * ranks


def _read(key: str, make: Callable[..., Any], *arguments: Any) -> Any:
    try:
        return make(*arguments)
    except InvalidLayout as error:
        refuse("get_tensor", [key], f"{key!r}: {error}")
        return None


def _read_elements(client: _native.Client, key: str, session: _native.GetSession, tensor: Any) -> int:
    """Elements into a tensor. The session sees one version of the object: the header fits what is read after it."""
    header = ctypes.create_string_buffer(SIZE)
    code: int = client.read_into([session], [[ctypes.addressof(header)]], [[SIZE]], [[0]])[0]
    if code < 0:
        return code
    try:
        layout = unpack(header.raw, session.size)
    except InvalidLayout as error:
        return refuse("get_tensor_into_cuda", [key], f"{key!r}: {error}")[0]
    if not matches(tensor, layout):
        return refuse("get_tensor_into_cuda", [key], f"{key!r} has {layout.dtype} of shape {layout.shape}")[0]
    if not layout.length:
        return 0
    wait_for(tensor)
    code = client.read_into([session], [[tensor.data_ptr()]], [[layout.length]], [[layout.offset]])[0]
    return code


def _repeated(config: ReplicateConfig | None, times: int) -> ReplicateConfig | None:
    """Copy of the configuration for the parts of each key, which share its group and its session."""
    if config is None:
        return None
    repeated = copy.deepcopy(config)
    for field in ("group_ids", "session_ids"):
        given = getattr(config, field)
        if given is not None:
            setattr(repeated, field, [entry for entry in given for _ in range(times)])
    return repeated
