"""Mooncake's transfer engine, over TCP.

An upstream installation further down `sys.path` has the real one, and then this module is that one.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path

import mooncake


def _upstream() -> ModuleSpec | None:
    """The transfer engine of upstream's installation, if the package's path leads to one."""
    # Another copy of this package is none: the two would import each other.
    others = [entry for entry in mooncake.__path__ if not (Path(entry) / "store" / "link.py").exists()]
    spec = PathFinder.find_spec(__name__, others)
    return spec if spec is not None and spec.loader is not None else None


_spec = _upstream()
if _spec is None or _spec.loader is None:
    from .transfer_engine import InnerTransferEngine, Read, TransferEngine, TransferNotify, TransferOpcode, Write
    from .unsupported import (
        SUPPORT_CUDA,
        SUPPORT_EFA,
        SUPPORT_HIP,
        SUPPORT_INTRA_NVLINK,
        SUPPORT_MNNVL,
        SUPPORT_MULTI_PROTOCOL,
        SUPPORT_MUSA,
        CoroRPCInterface,
        ReceivedData,
        ReceivedTensor,
        RpcInterface,
        ScatterTransferCompletionStatus,
        ScatterTransferTicket,
        SharedSegment,
        create_rpc_client,
        create_rpc_server,
    )
else:
    # The import that runs this file takes what it finds under the name in the end.
    _module = importlib.util.module_from_spec(_spec)
    sys.modules[__name__] = _module
    _spec.loader.exec_module(_module)

__all__ = [
    "SUPPORT_CUDA",
    "SUPPORT_EFA",
    "SUPPORT_HIP",
    "SUPPORT_INTRA_NVLINK",
    "SUPPORT_MNNVL",
    "SUPPORT_MULTI_PROTOCOL",
    "SUPPORT_MUSA",
    "CoroRPCInterface",
    "InnerTransferEngine",
    "Read",
    "ReceivedData",
    "ReceivedTensor",
    "RpcInterface",
    "ScatterTransferCompletionStatus",
    "ScatterTransferTicket",
    "SharedSegment",
    "TransferEngine",
    "TransferNotify",
    "TransferOpcode",
    "Write",
    "create_rpc_client",
    "create_rpc_server",
]
