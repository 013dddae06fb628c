"""Services of the package `mooncake`, started by the command lines that deployments have."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cluster import LOOPBACK, PATIENCE, until
from mooncake._services.flags import Flag, markdown

GUIDE = Path(__file__).resolve().parents[3] / "docs/mooncake.md"
# Read here: the fixtures take such variables away.
BLESS = bool(os.environ.get("MC_BLESS"))


def script(name: str) -> list[str]:
    """A console script of the package, as it is installed beside this interpreter."""
    path = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    assert path is not None, f"{name}: install mc-kvcache-mooncake"
    return [path]


def module(name: str) -> list[str]:
    return [sys.executable, "-m", f"mooncake.{name}"]


class Service:
    """A process with its log. It gets no settings of the person who runs the tests."""

    def __init__(self, directory: Path, command: list[str], log: int | None = None, **environ: str) -> None:
        self.log = directory / f"log-{len(list(directory.glob('log-*')))}"
        clean = {key: value for key, value in os.environ.items() if not key.startswith(("MC_", "MOONCAKE_", "RBG_", "KUBERNETES_"))}
        if "MC_BIN_DIR" in os.environ:
            clean["PATH"] = f"{os.environ['MC_BIN_DIR']}:{clean['PATH']}"
        with self.log.open("wb") as file:
            output = file.fileno() if log is None else log
            environment = clean | environ
            self.process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL, cwd=directory, env=environment)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_until_listening(self, port: int) -> None:
        """Waits until a connection is accepted. An end of the process fails the test."""

        def accepts() -> bool:
            assert self.process.poll() is None, f"it ended with {self.process.returncode}: {self.text[-3000:]}"
            try:
                socket.create_connection((LOOPBACK, port), timeout=PATIENCE).close()
            except OSError:
                return False
            return True

        until(f"port {port} accepts connections", accepts)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, and returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(PATIENCE)

    def code(self) -> int:
        """Waits for the end of a process that ends by itself."""
        return self.process.wait(PATIENCE)


Start = Callable[..., Service]


@contextmanager
def starting(directory: Path, command: list[str]) -> Iterator[Start]:
    """Starts services with more arguments, and kills those that are left."""
    services: list[Service] = []

    def start(*arguments: str, **environ: str) -> Service:
        services.append(Service(directory, [*command, *arguments], **environ))
        return services[-1]

    try:
        yield start
    finally:
        for service in services:
            service.end(signal.SIGKILL)


def check_guide(program: str, table: Mapping[str, Flag]) -> None:
    """The guide has the table of the flags. With MC_BLESS it gets it."""
    begin, end = f"<!-- flags of {program} -->", f"<!-- end of {program} -->"
    section = f"{begin}\n\n{markdown(table)}\n{end}"
    if BLESS:
        head, _, rest = GUIDE.read_text().partition(begin)
        GUIDE.write_text(head + section + rest.partition(end)[2])
    assert section in GUIDE.read_text(), "write it with MC_BLESS=1"


def ask(
    port: int, method: str, path: str, body: bytes | None = None, headers: dict[str, str] | None = None
) -> tuple[int, bytes, dict[str, str]]:
    """Status, body and headers of an answer."""
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=PATIENCE)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def ask_json(port: int, method: str, path: str, value: Any = None) -> tuple[int, Any]:
    """Status and JSON of an answer to a request with JSON."""
    body = None if value is None else value if isinstance(value, bytes) else json.dumps(value).encode()
    status, content, _ = ask(port, method, path, body)
    return status, json.loads(content)
