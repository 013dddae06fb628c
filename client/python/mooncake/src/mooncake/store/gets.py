"""Gets, existence and sizes."""

from __future__ import annotations

from .buffers import BufferHandle
from .codes import INVALID_PARAMS
from .connection import Connection
from .descriptors import ReplicaDescriptor, from_description
from .replicate_config import ExistOptions
from .shapes import NOT_SET_UP, Keys, NestedNumbers, Numbers, differ, refuse


class Gets(Connection):
    """Calls that read objects."""

    def get(self, key: str) -> bytes:
        """Bytes of the object, or b"" if it can't be read."""
        return self.get_batch([key])[0]

    def get_batch(self, keys: Keys) -> list[bytes]:
        """Bytes of each object, or b"" for one that can't be read."""
        link = self._link
        if link is None:
            refuse("get", keys, NOT_SET_UP)
            return [b""] * len(keys)
        return [value if isinstance(value, bytes) else b"" for value in link.client.get(keys)]

    def get_buffer(self, key: str) -> BufferHandle | None:
        """The object in memory that belongs to the caller, or None if it can't be read."""
        return self.batch_get_buffer([key])[0]

    def batch_get_buffer(self, keys: Keys) -> list[BufferHandle | None]:
        """Each object in memory that belongs to the caller, or None for one that can't be read."""
        link = self._link
        if link is None:
            refuse("get", keys, NOT_SET_UP)
            return [None] * len(keys)
        return [None if isinstance(handle, int) else handle for handle in link.client.get_owned(keys)]

    def get_into(self, key: str, buffer_ptr: int, size: int) -> int:
        """Read the object into the memory at the address. Returns its length, or a negative code."""
        return self.batch_get_into([key], [buffer_ptr], [size])[0]

    def batch_get_into(self, keys: Keys, buffer_ptrs: Numbers, sizes: Numbers) -> list[int]:
        """`get_into` for each key. A buffer may be larger than its object."""
        link = self._link
        if link is None:
            return refuse("get", keys, NOT_SET_UP)
        if differ(keys, buffer_ptrs, sizes):
            return refuse("get", keys, f"{len(buffer_ptrs)} addresses and {len(sizes)} sizes")
        lengths: list[int] = link.client.get_into(keys, buffer_ptrs, sizes)
        return lengths

    def batch_get_into_multi_buffers(
        self,
        keys: Keys,
        all_buffer_ptrs: NestedNumbers,
        all_sizes: NestedNumbers,
        prefer_alloc_in_same_node: bool = False,
    ) -> list[int]:
        """Read each object into its buffers, one after the other. They must have the object's length together.

        `prefer_alloc_in_same_node` is accepted: a replica on this host is preferred in any case.
        """
        del prefer_alloc_in_same_node
        link = self._link
        if link is None:
            return refuse("get", keys, NOT_SET_UP)
        if differ(keys, all_buffer_ptrs, all_sizes):
            return refuse("get", keys, f"{len(all_buffer_ptrs)} lists of addresses and {len(all_sizes)} of sizes")
        try:
            results: list[int] = link.client.get_into(keys, all_buffer_ptrs, all_sizes)
        except ValueError as error:
            # Lists of one key that differ in length, or bytes that no memory has.
            return refuse("get", keys, str(error))
        wanted = list(map(sum, all_sizes))
        if results == wanted:
            return results
        # Engines take any other length for success, and would use buffers that were filled in part.
        return [INVALID_PARAMS if 0 <= length != expected else length for length, expected in zip(results, wanted, strict=True)]

    def is_exist(self, key: str, options: ExistOptions | None = None) -> int:
        """1 if the object can be read now, 0 if not. The answer leases it to this client for a while."""
        return self.batch_is_exist([key], options)[0]

    def batch_is_exist(self, keys: Keys, options: ExistOptions | None = None) -> list[int]:
        """`is_exist` for each key."""
        del options
        link = self._link
        if link is None:
            # LMCache ignores the result of `setup`, and takes any number but 0 for a hit.
            return [0] * len(refuse("is_exist", keys, NOT_SET_UP))
        found: list[int] = link.client.exist(keys)
        return found

    def probe_key(self, key: str) -> int:
        """`is_exist` without a lease: the object may be evicted before it is read."""
        return self.batch_probe_key([key])[0]

    def batch_probe_key(self, keys: Keys, policy: str = "none", candidate_size: int = 1) -> list[int]:
        """`probe_key` for each key.

        `policy` is "none", or "LastHitOnly": then the last `candidate_size` keys in a row that all exist, at a multiple
        of that number, are leased.
        """
        link = self._link
        if link is None:
            return [0] * len(refuse("probe_key", keys, NOT_SET_UP))
        if policy not in ("none", "LastHitOnly") or candidate_size < 1:
            return refuse("probe_key", keys, f"policy {policy!r} with candidates of {candidate_size}")
        results: list[int] = link.client.exist(keys, lease=False)
        if policy == "LastHitOnly":
            for start in reversed(range(0, len(keys) - candidate_size + 1, candidate_size)):
                group = slice(start, start + candidate_size)
                if all(results[group]):
                    results[group] = link.client.exist(keys[group])
                    if all(results[group]):
                        break
        return results

    def get_size(self, key: str) -> int:
        """Length of the object, -704 if there is none, -703 while it is being written."""
        link = self._link
        return refuse("get_size", [key], NOT_SET_UP)[0] if link is None else link.client.size([key])[0]

    def get_replica_desc(self, key: str) -> list[ReplicaDescriptor]:
        """Where the object's replicas are. [] if there is no such object."""
        return self.batch_get_replica_desc([key]).get(key, [])

    def batch_get_replica_desc(self, keys: Keys) -> dict[str, list[ReplicaDescriptor]]:
        """`get_replica_desc` for each key that exists."""
        link = self._link
        if link is None:
            refuse("get_replica_desc", keys, NOT_SET_UP)
            return {}
        described = zip(keys, link.client.describe(keys), strict=True)
        return {key: from_description(found) for key, found in described if not isinstance(found, int)}

    def get_offload_rpc_read_count(self) -> int:
        """Reads from disk on other hosts: 0, as the pool has no disk tier."""
        return 0
