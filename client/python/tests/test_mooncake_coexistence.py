"""This package beside an upstream one, which here is a stand-in with upstream's file names."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import mooncake
from mooncake._coexistence import refuse_shared_directory


def run(code: str, *path: Path) -> str:
    """Output of `code` in an interpreter that finds packages in `path`, in this order, before all others."""
    lines = [f"import sys; sys.path[:0] = {[str(entry) for entry in path]!r}", code]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def ours() -> Path:
    return Path(mooncake.__file__).parent.parent


@pytest.fixture
def upstream(tmp_path: Path) -> Path:
    """A folder with what matters of upstream's package."""
    package = tmp_path / "upstream" / "mooncake"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("from pkgutil import extend_path\n__path__ = extend_path(__path__, __name__)\n")
    (package / "store.py").write_text("origin = 'upstream'\n")
    (package / "engine.py").write_text("origin = 'upstream'\nclass TransferEngine: pass\n")
    (package / "pg.py").write_text("origin = 'upstream'\n")
    return package.parent


def test_upstream_behind_us_serves_what_we_do_not_have(ours: Path, upstream: Path) -> None:
    code = """
import mooncake.pg, mooncake.engine, mooncake.store
from mooncake.engine import TransferEngine
print(mooncake.pg.origin, mooncake.engine.origin, TransferEngine.__module__, hasattr(mooncake.store, 'origin'))
"""
    assert run(code, ours, upstream) == "upstream upstream mooncake.engine False"


def test_our_engine_serves_alone(ours: Path) -> None:
    assert run("import mooncake.engine; print(mooncake.engine.TransferEngine.__module__)", ours) == ("mooncake.engine.transfer_engine")


@pytest.mark.parametrize("name", ["store.so", "engine.so", "_store.cpython-311-x86_64-linux-gnu.so"])
def test_a_shared_directory_is_refused(tmp_path: Path, name: str) -> None:
    refuse_shared_directory(tmp_path)
    (tmp_path / name).touch()
    with pytest.raises(ImportError, match=r"(?s)pip uninstall -y mooncake-transfer-engine.*pip install --force-reinst"):
        refuse_shared_directory(tmp_path)


def test_importing_starts_nothing(ours: Path) -> None:
    code = """
import threading, os, sys, signal
before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
import mooncake, mooncake.store, mooncake.engine, mooncake.async_store, mooncake.mooncake_config
maps = open('/proc/self/maps').read()
print(len(os.listdir('/proc/self/task')), 'libcuda' in maps, 'libibverbs' in maps, 'torch' in sys.modules,
      before == (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)))
"""
    assert run(code, ours) == "1 False False False True"
