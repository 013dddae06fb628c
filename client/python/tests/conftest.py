"""Fixtures: clusters of real processes, and stores of the package `mooncake` on them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster import Cluster

MIB = 1 << 20


@pytest.fixture(autouse=True)
def _no_settings_of_this_person(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(("MC_", "MOONCAKE_")) and name != "MC_BIN_DIR":
            monkeypatch.delenv(name)


@pytest.fixture(scope="session")
def one_master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of one master, shared by tests that leave it alive."""
    yield from _running(tmp_path_factory.mktemp("one"), 1)


@pytest.fixture(scope="session")
def three_masters(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster of three masters. Tests that kill one start it again."""
    yield from _running(tmp_path_factory.mktemp("three"), 3)


@pytest.fixture
def own_master(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of one master that a test may do anything to."""
    yield from _running(tmp_path / "own", 1)


@pytest.fixture
def own_masters(tmp_path: Path) -> Iterator[Cluster]:
    """A cluster of three masters that a test may do anything to."""
    yield from _running(tmp_path / "own", 3)


def _running(directory: Path, masters: int) -> Iterator[Cluster]:
    cluster = Cluster(directory, masters)
    try:
        yield cluster.start()
    finally:
        cluster.stop()


Open = Callable[..., Any]


def _opener(opened: list[Any]) -> Open:
    def open_store(cluster: Cluster, segment: int = 64 * MIB, local_buffer: int = 16 * MIB, **more: Any) -> Any:
        from mooncake.store import MooncakeDistributedStore

        store = MooncakeDistributedStore()
        code = store.setup("localhost", "P2PHANDSHAKE", segment, local_buffer, "tcp", "", cluster.addresses, **more)
        assert code == 0
        opened.append(store)
        return store

    return open_store


@pytest.fixture
def open_store() -> Iterator[Open]:
    """Makes stores of this process, closed at the end of the test."""
    opened: list[Any] = []
    yield _opener(opened)
    for store in opened:
        store.close()


@pytest.fixture(scope="module")
def store(one_master: Cluster) -> Iterator[Any]:
    """A store with memory of its own on one master, shared by the tests of a file."""
    opened: list[Any] = []
    yield _opener(opened)(one_master)
    for one in opened:
        one.close()


_numbers = itertools.count()


@pytest.fixture
def key(request: pytest.FixtureRequest) -> str:
    """A key that no other test uses."""
    return f"{request.node.name}-{os.getpid()}-{next(_numbers)}"
