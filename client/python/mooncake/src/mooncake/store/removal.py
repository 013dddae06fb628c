"""Removal of objects and of single replicas."""

from __future__ import annotations

from mc import McError

from .codes import OK, upstream
from .connection import Connection
from .shapes import NOT_SET_UP, Keys, refuse


class Removal(Connection):
    """Calls that remove objects. One that was read within its lease stays, unless `force` is set."""

    def remove(self, key: str, force: bool = False) -> int:
        """0 if the object is gone, -704 if there was none, -706 if it is leased."""
        return self.batch_remove([key], force)[0]

    def batch_remove(self, keys: Keys, force: bool = False) -> list[int]:
        """`remove` for each key."""
        link = self._link
        return refuse("remove", keys, NOT_SET_UP) if link is None else link.client.remove(keys, force)

    def remove_all(self, force: bool = False) -> int:
        """Remove all objects of the tenant that are not leased. Returns how many, or a negative code."""
        link = self._link
        if link is None:
            return refuse("remove_all", [None], NOT_SET_UP)[0]
        try:
            removed: int = link.client.remove_all(force)[0]
        except McError as error:
            return upstream(error.code)
        return removed

    def remove_by_regex(self, regex_pattern: str, force: bool = False) -> int:
        """Remove the objects whose keys contain a match, unless leased. Returns how many, or a negative code."""
        link = self._link
        if link is None:
            return refuse("remove_by_regex", [regex_pattern], NOT_SET_UP)[0]
        try:
            removed: int = link.client.remove_by_regex(regex_pattern, force)[0]
        except McError as error:
            refuse("remove_by_regex", [regex_pattern], str(error))
            return upstream(error.code)
        return removed

    def batch_replica_clear(self, keys: Keys, segment_name: str = "") -> list[str]:
        """Drop the replicas in one store, or the objects if no store is named. Returns the keys that lost something."""
        link = self._link
        if link is None:
            refuse("batch_replica_clear", keys, NOT_SET_UP)
            return []
        codes = link.client.drop_replicas(keys, segment_name) if segment_name else link.client.remove(keys, False)
        return [key for key, code in zip(keys, codes, strict=True) if code == OK]
