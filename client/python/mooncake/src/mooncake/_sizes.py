"""Sizes as people write them in configuration files."""

from __future__ import annotations

import math
import re
from operator import index
from typing import SupportsIndex

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?(?:e\d+)?)\s*([kmgt]?)i?b?")


def parse_size(value: str | SupportsIndex | float) -> int:
    """Bytes of `value`: a number, or text such as "4gb", "16 MB", "1.5g" or "1024". Units are powers of 1024.

    TypeError for a value of another type, and ValueError for one that is no size.
    """
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{value!r} is not a size")
        size = int(value)
    elif isinstance(value, str):
        match = _SIZE.fullmatch(value.strip().lower())
        if match is None:
            raise ValueError(f'{value!r} is not a size: write bytes, or a number with a unit, such as "16mb" or "4gb"')
        number, unit = match.groups()
        size = int(number) * _UNITS[unit] if number.isdigit() else int(float(number) * _UNITS[unit])
    else:
        size = index(value)
    if size < 0:
        raise ValueError(f"{value!r} is negative, and a size is not")
    return size
