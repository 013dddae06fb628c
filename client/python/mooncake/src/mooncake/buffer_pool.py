"""Buffers for the calls that read into memory, under upstream's module name."""

from __future__ import annotations

from .store import BufferPool, RegisteredBufferPool

__all__ = ["BufferPool", "RegisteredBufferPool"]
