"""Puts and upserts, of values and of raw memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from .codes import OK
from .connection import Connection
from .link import Link
from .placement import InvalidConfig, Placement, place
from .replicate_config import ReplicateConfig
from .shapes import NOT_SET_UP, AnyNumbers, Keys, NestedNumbers, Numbers, differ, refuse

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Puts(Connection):
    """Calls that store objects. 0: stored, or there already. Negative: a code of upstream."""

    def put(self, key: str, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """Store the bytes of `value`. An object that exists keeps its value."""
        return self._put_values([key], [value], config, upsert=False)[0]

    def upsert(self, key: str, value: Buffer, config: ReplicateConfig | None = None) -> int:
        """Store the bytes of `value` in the place of the object, if there is one."""
        return self._put_values([key], [value], config, upsert=True)[0]

    def put_parts(self, key: str, *args: Buffer, config: ReplicateConfig | None = None) -> int:
        """Store the buffers one after the other as one object."""
        return self._put_values([key], [args], config, upsert=False)[0]

    def upsert_parts(self, key: str, *args: Buffer, config: ReplicateConfig | None = None) -> int:
        """`put_parts` that replaces an object."""
        return self._put_values([key], [args], config, upsert=True)[0]

    def put_batch(self, keys: Keys, values: Sequence[Buffer], config: ReplicateConfig | None = None) -> int:
        """Store one object for each key. 0 if all are stored, or else the code of the first that is not."""
        return _first_failure(self._put_values(keys, values, config, upsert=False))

    def upsert_batch(self, keys: Keys, values: Sequence[Buffer], config: ReplicateConfig | None = None) -> int:
        """`put_batch` that replaces objects."""
        return _first_failure(self._put_values(keys, values, config, upsert=True))

    def put_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """Store `size` bytes at the address."""
        return self._put_memory([key], [buffer_ptr], [size], config, upsert=False)[0]

    def upsert_from(self, key: str, buffer_ptr: int, size: int, config: ReplicateConfig | None = None) -> int:
        """`put_from` that replaces an object."""
        return self._put_memory([key], [buffer_ptr], [size], config, upsert=True)[0]

    def put_from_with_metadata(
        self,
        key: str,
        buffer_ptr: int,
        metadata_buffer_ptr: int,
        size: int,
        metadata_size: int,
        config: ReplicateConfig | None = None,
    ) -> int:
        """Store the metadata and then the data as one object."""
        return self._put_memory([key], [[metadata_buffer_ptr, buffer_ptr]], [[metadata_size, size]], config, upsert=False)[0]

    def batch_put_from(self, keys: Keys, buffer_ptrs: Numbers, sizes: Numbers, config: ReplicateConfig | None = None) -> list[int]:
        """Store the memory at each address under the key in the same place."""
        return self._put_memory(keys, buffer_ptrs, sizes, config, upsert=False)

    def batch_upsert_from(self, keys: Keys, buffer_ptrs: Numbers, sizes: Numbers, config: ReplicateConfig | None = None) -> list[int]:
        """`batch_put_from` that replaces objects."""
        return self._put_memory(keys, buffer_ptrs, sizes, config, upsert=True)

    def batch_put_from_multi_buffers(
        self,
        keys: Keys,
        all_buffer_ptrs: NestedNumbers,
        all_sizes: NestedNumbers,
        config: ReplicateConfig | None = None,
    ) -> list[int]:
        """Store the buffers of each key one after the other as one object."""
        return self._put_memory(keys, all_buffer_ptrs, all_sizes, config, upsert=False)

    def _put_values(
        self,
        keys: Keys,
        values: Sequence[Buffer | Sequence[Buffer]],
        config: ReplicateConfig | None,
        *,
        upsert: bool,
    ) -> list[int]:
        link = self._link
        if link is None:
            return refuse("put", keys, NOT_SET_UP)
        if not link.may_put:
            return refuse("put", keys, "this store was set up with local_buffer_size 0, to serve memory only")
        if differ(keys, values):
            return refuse("put", keys, f"{len(values)} values")

        placed = _placed(link, keys, config, upsert=upsert)
        if isinstance(placed, list):
            return placed
        codes: list[int] = link.client.put(keys, values, placed.options, placed.groups)
        return codes

    def _put_memory(
        self,
        keys: Keys,
        addresses: AnyNumbers,
        sizes: AnyNumbers,
        config: ReplicateConfig | None,
        *,
        upsert: bool,
    ) -> list[int]:
        link = self._link
        if link is None:
            return refuse("put", keys, NOT_SET_UP)
        if differ(keys, addresses, sizes):
            return refuse("put", keys, f"{len(addresses)} addresses and {len(sizes)} sizes")

        placed = _placed(link, keys, config, upsert=upsert)
        if isinstance(placed, list):
            return placed
        try:
            codes: list[int] = link.client.put_from(keys, addresses, sizes, placed.options, placed.groups)
        except ValueError as error:
            # Lists of one key that differ in length, or bytes that no memory has.
            return refuse("put", keys, str(error))
        return codes


def _placed(link: Link, keys: Keys, config: ReplicateConfig | None, *, upsert: bool) -> Placement | list[int]:
    """Options of the call, or the results of a call whose configuration does not fit."""
    try:
        return place(config, len(keys), upsert=upsert, seconds=link.settings.put_seconds)
    except InvalidConfig as error:
        return refuse("put", keys, str(error))


def _first_failure(results: list[int]) -> int:
    return next((code for code in results if code != OK), OK)
