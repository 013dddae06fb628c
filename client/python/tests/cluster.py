"""Real masters and stores on free ports of this host, in a directory of their own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")

# Bounds of waiting, for machines under load. Nothing is expected to take that long.
PATIENCE = 60.0
LOOPBACK = "127.0.0.1"


def until(what: str, condition: Callable[[], T | None]) -> T:
    """The first result of `condition` that is true."""
    deadline = time.monotonic() + PATIENCE
    while True:
        result = condition()
        if result:
            return result
        assert time.monotonic() < deadline, f"waited {PATIENCE:g} s until {what}"
        time.sleep(0.02)


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on. They are all bound at once, so they differ."""
    probes = [socket.socket() for _ in range(count)]
    try:
        for probe in probes:
            probe.bind((LOOPBACK, 0))
        return [probe.getsockname()[1] for probe in probes]
    finally:
        for probe in probes:
            probe.close()


def executable(name: str) -> str:
    """Path of an executable of the server's wheel: in MC_BIN_DIR, beside the interpreter, or on PATH."""
    folders = [os.environ.get("MC_BIN_DIR"), str(Path(sys.executable).parent), *os.get_exec_path()]
    for folder in filter(None, folders):
        path = shutil.which(name, path=folder)
        if path is not None:
            return path
    raise FileNotFoundError(f"{name}: install mc-kvcache-server, or set MC_BIN_DIR")


class Process:
    """One server process with its log."""

    def __init__(self, name: str, arguments: list[str], directory: Path, **environ: str) -> None:
        self.name, self.arguments, self.directory, self.environ = name, arguments, directory, environ
        directory.mkdir(parents=True, exist_ok=True)
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        # Settings of the person who runs the tests are not those of the servers.
        environ = {key: value for key, value in os.environ.items() if not key.startswith("MC_")}
        with (self.directory / "log").open("ab") as log:
            command = [executable(self.name), *self.arguments]
            self.process = subprocess.Popen(command, stderr=log, stdout=log, stdin=subprocess.DEVNULL, env=environ | self.environ)

    def kill(self) -> None:
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def pause(self) -> None:
        """Stops it where it is. It does nothing more when this returns: a thread may run for a while after the signal."""
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)
        threads = Path(f"/proc/{self.process.pid}/task")

        def stopped() -> bool:
            try:
                # The state comes after the name, which is in parentheses.
                states = {(thread / "stat").read_text(encoding="ascii").rpartition(")")[2].split()[0] for thread in threads.iterdir()}
            except FileNotFoundError:
                # One has ended meanwhile.
                return False
            return states == {"T"}

        until(f"{self.name} is stopped", stopped)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait()
            self.process = None

    @property
    def alive(self) -> bool:
        """Whether it runs. An end that nobody asked for fails the test."""
        if self.process is None:
            return False
        log = self.directory / "log"
        assert self.process.poll() is None, f"{self.name} ended: {log.read_text(errors='replace')[-2000:]}"
        return True


class Master(Process):
    def __init__(self, directory: Path, ports: tuple[int, int, int], formation: list[str], extra: list[str]) -> None:
        client, raft, http = ports
        self.address, self.http = f"{LOOPBACK}:{client}", f"{LOOPBACK}:{http}"
        arguments = [*formation, "--listen", self.address, "--raft-listen", f"{LOOPBACK}:{raft}"]
        arguments += ["--http-listen", self.http, "--data-dir", str(directory / "data"), "--disk-reserve", "64mb"]
        super().__init__("mc-master", arguments + extra, directory)

    def status(self) -> dict[str, Any]:
        """What the master says about the cluster. Nothing if it does not answer."""
        try:
            with urllib.request.urlopen(f"http://{self.http}/status", timeout=5) as answer:
                status: dict[str, Any] = json.load(answer)
                return status
        except OSError:
            return {}


class Cluster:
    """Masters that know each other, and stores that were added to them."""

    def __init__(self, directory: Path, masters: int, *extra: str) -> None:
        self.directory = directory
        ports = free_ports(3 * masters)
        split = [(ports[i], ports[masters + i], ports[2 * masters + i]) for i in range(masters)]
        peers = ",".join(f"{LOOPBACK}:{raft}" for _, raft, _ in split)
        formation = ["--single"] if masters == 1 else ["--peers", peers]
        self.masters = [Master(directory / f"master{i}", split[i], formation, list(extra)) for i in range(masters)]
        self.stores: list[Process] = []

    @property
    def addresses(self) -> str:
        return ",".join(master.address for master in self.masters)

    def start(self) -> Cluster:
        for master in self.masters:
            if not master.alive:
                master.start()
        self.wait_for_leader()
        return self

    def leader(self) -> Master | None:
        leaders = [master for master in self.masters if master.alive and master.status().get("role") == "leader"]
        return leaders[0] if len(leaders) == 1 else None

    def wait_for_leader(self) -> Master:
        return until("there is a leader", self.leader)

    def mounted(self) -> list[str]:
        """Names of the stores that the leader knows."""
        return [store["name"] for store in self.wait_for_leader().status().get("stores", [])]

    def add_store(self, segment: str, *extra: str) -> Process:
        data, http = free_ports(2)
        directory = self.directory / f"store{len(self.stores)}"
        arguments = ["--masters", self.addresses, "--segment", segment, "--listen", f"{LOOPBACK}:{data}"]
        arguments += ["--http-listen", f"{LOOPBACK}:{http}", "--data-dir", str(directory / "data")]
        store = Process("mc-store", [*arguments, *extra], directory)
        before = len(self.mounted())
        store.start()
        self.stores.append(store)
        until("the store is mounted", lambda: len(self.mounted()) > before)
        return store

    def kill_masters(self) -> None:
        for master in self.masters:
            master.kill()

    def stop(self) -> None:
        for process in [*self.stores, *self.masters]:
            process.kill()
