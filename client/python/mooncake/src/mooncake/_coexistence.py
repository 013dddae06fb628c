"""Refusal to run in a directory that an upstream wheel was installed into as well."""

from __future__ import annotations

from pathlib import Path

# Files that only upstream's wheels have: 0.3.13 has the first two, 0.3.14 the last two.
_UPSTREAM_FILES = ("store.so", "engine.so", "_store.*.so")


def refuse_shared_directory(package: Path) -> None:
    """Raise ImportError if the directory `package` holds files of an upstream wheel.

    Both wheels own files of the same names there, so the one installed last has overwritten part of the other.
    """
    found = [file.name for pattern in _UPSTREAM_FILES for file in package.glob(pattern)]
    if not found:
        return
    raise ImportError(
        f"{package} holds both mc-kvcache-mooncake and mooncake-transfer-engine ({', '.join(sorted(found))}), and each"
        " has overwritten files of the other. Keep one of them:\n"
        "    pip uninstall -y mooncake-transfer-engine mooncake-transfer-engine-non-cuda"
        " mooncake-transfer-engine-cuda13 mooncake-transfer-engine-npu\n"
        "    pip install --force-reinstall --no-deps mc-kvcache-mooncake"
    )
