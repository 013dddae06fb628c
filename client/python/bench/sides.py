"""Pools to put side by side: ours, upstream's package, and processes that use either.

Each side has masters of its own, and an environment in which Python finds its package `mooncake`. Servers of our side
are found as by the tests: MC_BIN_DIR, beside the interpreter, or on PATH. As a script, this file lends memory to a pool.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from cluster import LOOPBACK, PATIENCE, Cluster, Process, free_ports, until

MIB = 1 << 20
LENDS = "lends memory"


def connect(masters: str, segment: int) -> Any:
    """A store of the package `mooncake` that this interpreter finds. It lends `segment` bytes."""
    from mooncake.store import MooncakeDistributedStore

    store = MooncakeDistributedStore()
    code = store.setup(LOOPBACK, "P2PHANDSHAKE", segment, 64 * MIB, "tcp", "", masters)
    if code:
        raise SystemExit(f"setup with {masters}: {code}")
    return store


class Side(ABC):
    """One of the packages: its masters, and the environment in which Python finds it."""

    name: str
    options: str
    """How its masters are run, for the reader of the result."""
    masters: str
    """Their addresses, as clients are given them."""

    def __init__(self, directory: Path, environ: dict[str, str]) -> None:
        self.directory, self.environ = directory, environ
        self._stores: list[Process] = []

    @abstractmethod
    def start(self) -> None:
        """Starts its masters, and waits until they serve."""

    @abstractmethod
    def kill_master(self) -> None:
        """Kills the master that serves, with SIGKILL."""

    @abstractmethod
    def restart_master(self) -> None:
        """Starts the killed master again, as a supervisor does, and does not wait for it."""

    def add_store(self, segment: int, **environ: str) -> Store:
        """A process that lends memory to the pool until it is stopped or killed."""
        store = Store(self, segment, self.directory / f"store{len(self._stores)}", environ)
        self._stores.append(store)
        store.start()
        return store

    def stop(self) -> None:
        """Ends its stores."""
        for store in self._stores:
            store.kill()


class Store(Process):
    """A Python process that lends memory to the pool of a side."""

    def __init__(self, side: Side, segment: int, directory: Path, environ: dict[str, str]) -> None:
        arguments = [__file__, side.masters, str(segment)]
        super().__init__(sys.executable, arguments, directory, **side.environ | environ)

    def start(self) -> None:
        super().start()
        until("the store lends memory", lambda: self.alive and LENDS in (self.directory / "log").read_text(errors="replace"))


class Worker:
    """A Python process of a side that answers commands: a line of JSON for each, and one for each answer."""

    def __init__(self, side: Side, script: str, *arguments: str, **environ: str) -> None:
        self._log = side.directory / f"{Path(script).stem}-{time.monotonic_ns()}.log"
        command = [sys.executable, script, "work", *arguments]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, env={**os.environ, **side.environ, **environ}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
            )

    def send(self, command: str, **arguments: Any) -> None:
        assert self._process.stdin is not None
        print(json.dumps({"command": command, **arguments}), file=self._process.stdin, flush=True)

    def answered(self, seconds: float = 0) -> bool:
        """Whether an answer is there, or comes within this time."""
        assert self._process.stdout is not None
        return bool(select.select([self._process.stdout], [], [], seconds)[0])

    def receive(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            code = self._process.wait()
            raise SystemExit(f"a worker ended with {code}: {self._log.read_text(errors='replace')[-2000:]}")
        return json.loads(line)

    def ask(self, command: str, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.receive()

    def end(self) -> None:
        # Some ways to end wait for masters that may be gone.
        self._process.kill()
        self._process.communicate()


def work(commands: dict[str, Callable[..., Any]]) -> None:
    """Answers commands of standard input until it ends. What libraries print goes to standard error."""
    with os.fdopen(os.dup(1), "w") as answers:
        os.dup2(2, 1)
        for line in sys.stdin:
            arguments = json.loads(line)
            print(json.dumps(commands[arguments.pop("command")](**arguments)), file=answers, flush=True)


class Ours(Side):
    def __init__(self, directory: Path, masters: int, name: str, environ: dict[str, str]) -> None:
        super().__init__(directory, environ)
        self.name = name
        self.options = f"{masters} master{'s' if masters > 1 else ''} with Raft and fdatasync"
        self._cluster = Cluster(directory, masters)
        self.masters = self._cluster.addresses

    def start(self) -> None:
        self._cluster.start()

    def kill_master(self) -> None:
        self._cluster.wait_for_leader().kill()

    def restart_master(self) -> None:
        for master in self._cluster.masters:
            if not master.alive:
                master.start()

    def stop(self) -> None:
        super().stop()
        self._cluster.stop()


class Upstream(Side):
    """One master without a log, which is upstream's default."""

    def __init__(self, directory: Path, package: Path) -> None:
        super().__init__(directory, upstream_environ(package))
        self.name = "upstream"
        self.options = f"{version(package)}, its defaults: 1 master in memory; etcd, op log and snapshots off"
        port, metrics = free_ports(2)
        self.masters = f"{LOOPBACK}:{port}"
        self._port = port
        self._master = Process(master_of(package), [f"--rpc_port={port}", f"--metrics_port={metrics}"], directory / "master")

    def start(self) -> None:
        self._master.start()
        until("upstream's master listens", lambda: self._master.alive and listens(self._port))

    def kill_master(self) -> None:
        self._master.kill()

    def restart_master(self) -> None:
        self._master.start()

    def stop(self) -> None:
        super().stop()
        self._master.kill()


class UpstreamWithEtcd(Side):
    """Two masters that choose a leader with etcd, whose log of operations in etcd the other one follows."""

    def __init__(self, directory: Path, package: Path, etcd: Path) -> None:
        super().__init__(directory, upstream_environ(package))
        self.name = "upstream, etcd"
        self.options = f"{version(package)}: 2 masters with --enable_ha --enable_oplog, etcd of one member with fsync"
        client, peer, *ports = free_ports(6)
        self._client = client
        clients, peers = f"http://{LOOPBACK}:{client}", f"http://{LOOPBACK}:{peer}"
        listen = ["--listen-client-urls", clients, "--advertise-client-urls", clients, "--listen-peer-urls", peers]
        cluster = ["--initial-advertise-peer-urls", peers, "--initial-cluster", f"default={peers}"]
        self._etcd = Process(str(etcd), [*listen, *cluster, "--data-dir", str(directory / "etcd")], directory / "etcd-log")
        self._processes: dict[int, Process] = {}
        for number, (rpc, metrics) in enumerate(zip(ports[::2], ports[1::2], strict=True)):
            arguments = [f"--rpc_port={rpc}", f"--metrics_port={metrics}", f"--rpc_address={LOOPBACK}"]
            arguments += ["--enable_ha=true", "--enable_oplog=true", f"--etcd_endpoints={clients}"]
            self._processes[metrics] = Process(master_of(package), arguments, directory / f"master{number}")
        self.masters = f"etcd://{LOOPBACK}:{client}"

    def start(self) -> None:
        self._etcd.start()
        until("etcd listens", lambda: self._etcd.alive and listens(self._client))
        self.restart_master()
        self._serving()

    def _serving(self) -> Process:
        """The master that serves, once there is one."""

        def found() -> Process | None:
            for metrics, process in self._processes.items():
                if process.alive and '"serving"' in (ask(metrics, "/health") or ""):
                    return process
            return None

        return until("a master serves", found)

    def kill_master(self) -> None:
        self._serving().kill()

    def restart_master(self) -> None:
        for process in self._processes.values():
            if not process.alive:
                process.start()

    def stop(self) -> None:
        super().stop()
        for process in [*self._processes.values(), self._etcd]:
            process.kill()


def upstream_environ(package: Path) -> dict[str, str]:
    return {"PYTHONPATH": str(package), "MC_LOG_LEVEL": "ERROR"}


def ask(port: int, path: str) -> str | None:
    """Body of an answer over HTTP. None if there is no answer."""
    try:
        with urllib.request.urlopen(f"http://{LOOPBACK}:{port}{path}", timeout=PATIENCE) as answer:
            body: bytes = answer.read()
            return body.decode()
    except OSError:
        return None


def version(package: Path) -> str:
    """Version of upstream's wheel in this folder."""
    folder = next(package.glob("mooncake_transfer_engine*.dist-info"))
    return folder.name.removesuffix(".dist-info").rpartition("-")[2]


def master_of(package: Path) -> str:
    """Path of upstream's master. An unpacked wheel has no executable files."""
    executable = package / "mooncake" / "mooncake_master"
    if not os.access(executable, os.X_OK):
        executable.chmod(0o755)
    return str(executable)


def listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=PATIENCE).close()
    except OSError:
        return False
    return True


@contextmanager
def ours(directory: Path, name: str = "ours", **environ: str) -> Iterator[Side]:
    """Our package, with three masters."""
    with running(Ours(directory, 3, name, environ)) as side:
        yield side


@contextmanager
def upstream(directory: Path, package: Path) -> Iterator[Side]:
    """Upstream's package in the folder into which its wheel was unpacked."""
    with running(Upstream(directory, package.resolve())) as side:
        yield side


@contextmanager
def upstream_with_etcd(directory: Path, package: Path, etcd: Path) -> Iterator[Side]:
    """The same with a second master, etcd and a log of operations."""
    with running(UpstreamWithEtcd(directory, package.resolve(), etcd.resolve())) as side:
        yield side


@contextmanager
def running(side: Side) -> Iterator[Side]:
    try:
        side.start()
        yield side
    finally:
        side.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description="lends memory to a pool until SIGTERM")
    parser.add_argument("masters")
    parser.add_argument("segment", type=int)
    arguments = parser.parse_args()
    # Blocked before there are other threads, so that it waits for sigwait.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    store = connect(arguments.masters, arguments.segment)
    print(LENDS, flush=True)
    signal.sigwait({signal.SIGTERM})
    store.close()


if __name__ == "__main__":
    main()
