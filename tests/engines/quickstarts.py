"""Runs the commands of docs/engines/*.md, each page in a virtual environment of its own.

    client/python/pack --target target/release
    python tests/engines/quickstarts.py --wheels target/wheels --engine sglang=sglang-wheel --engine vllm=vllm-wheel

A page starts with Mooncake's package installed, from the package index or from `--upstream`. A comment before each block says
what is done with it:

    <!-- quickstart: run -->            the lines run in one shell a page, and must end with 0
    <!-- quickstart: serve -->          each line is a service, which must listen. A line with `a,b,c` is started on three "machines"
    <!-- quickstart: run, serve -->     the same line by line
    <!-- quickstart: stop -->           has no block: the services are stopped, as the text beside it says
    <!-- quickstart: file NAME -->      the block is written into a file
    <!-- quickstart: engine NAME -->    the lines need a GPU: flags and variables must occur in the sources of the engine

`a,b,c` are addresses of three masters. Ports are moved to free ones: those after `port=` and `port `, and those of
`127.0.0.1:PORT` and `localhost:PORT`. A block of the language `sh` without a comment is an error.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import suite

from cluster import LOOPBACK, free_ports, until

PAGES = suite.REPOSITORY / "docs" / "engines"
BLOCK = re.compile(
    r"(?:<!-- quickstart: (?P<what>[^>]+?) -->\n\n?)(?:```(?P<kind>\w+)\n(?P<text>.*?)```)?|```sh\n(?P<bare>.*?)```", re.DOTALL
)
PORT = re.compile(r"(?<=port[= ])\d{4,5}\b|(?<=127\.0\.0\.1:)\d{4,5}\b|(?<=localhost:)\d{4,5}\b")
FLAG = re.compile(r"(?<![\w-])--([a-z][a-z0-9-]+)")
VARIABLE = re.compile(r"\b([A-Z][A-Z0-9]*_[A-Z0-9_]+)=")
MACHINES = ("a", "b", "c")
MASTER_PORT = "50051"


@dataclass
class Block:
    what: str
    text: str


def blocks(page: Path) -> list[Block]:
    found = []
    for match in BLOCK.finditer(page.read_text()):
        if match["bare"] is not None:
            raise SystemExit(f"{page.name}: this block has no comment that says what is done with it:\n{match['bare']}")
        found.append(Block(match["what"], match["text"] or ""))
    return found


@cache
def sources(folder: Path) -> str:
    return "\n".join(file.read_text(errors="replace") for file in folder.rglob("*.py"))


def commands(text: str) -> list[str]:
    """Lines of a block, without comments. A backslash at the end continues a line."""
    lines = text.replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].rstrip() for line in lines if line.strip() and not line.startswith("#")]


class Page:
    """A page that is run: its shell, its services and its ports."""

    def __init__(self, folder: Path, wheels: Path, upstream: str) -> None:
        self.folder = folder
        self.services: list[subprocess.Popen[bytes]] = []
        self.ports: dict[str, int] = {}
        ports = free_ports(3 * len(MACHINES))
        self.clients, self.rafts, self.https = ports[0:3], ports[3:6], ports[6:9]
        self.ports[MASTER_PORT] = self.clients[0]
        venv.create(folder / "venv", with_pip=True)
        # The wheels of this folder, whatever the index has.
        names = {re.split(r"-\d", wheel.name)[0].replace("_", "-"): wheel for wheel in wheels.glob("*.whl")}
        assert names, f"no wheels in {wheels}"
        constraint = folder / "constraint.txt"
        constraint.write_text("".join(f"{name} @ {wheel.as_uri()}\n" for name, wheel in names.items()))
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("MC_", "MOONCAKE_", "PIP_", "PYTHON"))}
        self.environ = kept | {
            "PATH": f"{folder / 'venv' / 'bin'}:{os.environ['PATH']}",
            "VIRTUAL_ENV": str(folder / "venv"),
            "PIP_CONSTRAINT": str(constraint),
            "PIP_FIND_LINKS": str(wheels),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "PIP_QUIET": "1",
        }
        self.run(f"pip install '{upstream}'")

    def moved(self, text: str) -> str:
        """A text with free ports, and the addresses of masters on this host."""

        def port(match: re.Match[str]) -> str:
            if match[0] not in self.ports:
                [self.ports[match[0]]] = free_ports(1)
            return str(self.ports[match[0]])

        text = PORT.sub(port, text)
        text = text.replace("--peers=a,b,c", "--peers=" + ",".join(f"{LOOPBACK}:{raft}" for raft in self.rafts))
        return text.replace("a,b,c", ",".join(f"{LOOPBACK}:{client}" for client in self.clients))

    def run(self, text: str) -> str:
        """Runs lines in the shell of the page. The variables that they set stay."""
        left = self.folder / "environ"
        script = f"set -e\n{self.moved(text)}\nenv -0 > {left}\n"
        done = subprocess.run(
            ["bash", "-c", script], cwd=self.folder, env=self.environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, f"{text}\nended with {done.returncode}:\n{done.stdout[-4000:]}"
        self.environ = dict(pair.split("=", 1) for pair in left.read_text().split("\0") if pair)
        return done.stdout

    def serve(self, line: str) -> None:
        """Starts a service, and waits until each port of its line accepts connections."""
        if "a,b,c" not in line:
            return self._start(line, {}, [self.ports[port] for port in self._ports_of(line)])
        for machine, client, raft, http in zip(MACHINES, self.clients, self.rafts, self.https, strict=True):
            listen = {"MC_LISTEN": client, "MC_RAFT_LISTEN": raft, "MC_HTTP_LISTEN": http}
            environ = {name: f"{LOOPBACK}:{port}" for name, port in listen.items()}
            self._start(line, environ | {"MC_DATA_DIR": str(self.folder / machine), "MC_DISK_RESERVE": "64mb"}, [])
        for client, http in zip(self.clients, self.https, strict=True):
            until("the masters have formed a cluster", lambda client=client, http=http: listens(client) and listens(http))

    def _ports_of(self, line: str) -> list[str]:
        self.moved(line)
        return re.findall(r"(?<=port[= ])\d{4,5}\b", line)

    def _start(self, line: str, environ: dict[str, str], ports: list[int]) -> None:
        log = self.folder / f"service-{len(self.services)}"
        with log.open("wb") as output:
            service = subprocess.Popen(
                ["bash", "-c", f"exec {self._exec(self.moved(line))}"],
                cwd=self.folder,
                env=self.environ | environ,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self.services.append(service)
        for port in ports:

            def ready(port: int = port) -> bool:
                assert service.poll() is None, f"{line}\nended with {service.returncode}:\n{log.read_text(errors='replace')[-4000:]}"
                return listens(port)

            until(f"{line} listens on {port}", ready)

    @staticmethod
    def _exec(line: str) -> str:
        """A line that `exec` takes: variables before a command are not part of it."""
        return f"env {line}" if VARIABLE.match(line) else line

    def stop(self) -> None:
        """Stops the services the way that an init system does."""
        for service in reversed(self.services):
            if service.poll() is None:
                service.send_signal(signal.SIGTERM)
        for service in self.services:
            assert service.wait(60) in (0, -signal.SIGTERM), f"{service.args} ended with {service.returncode}"
        self.services.clear()

    def kill(self) -> None:
        for service in self.services:
            service.kill()
            service.wait()


def listens(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), timeout=5).close()
    except OSError:
        return False
    return True


def check_engine(name: str, text: str, folder: Path) -> str:
    """Looks for the flags and variables of commands in the sources of an engine."""
    flags, variables = sorted(set(FLAG.findall(text))), sorted(set(VARIABLE.findall(text)))
    known = sources(folder)
    ours = sources(suite.REPOSITORY / "client" / "python")
    for flag in flags:
        # A flag may be made of the name of a field.
        assert f"--{flag}" in known or re.search(rf"\b{flag.replace('-', '_')}\b", known), f"{name} has no flag --{flag}"
    for variable in variables:
        assert variable in known or variable in ours, f"neither {name} nor the package reads {variable}"
    for quoted in re.findall(r"'(\{.*?\})'", text, re.DOTALL):
        json.loads(quoted)
    return f"{len(flags)} flags, {len(variables)} variables"


@contextmanager
def started(wheels: Path, upstream: str) -> Iterator[Page]:
    with tempfile.TemporaryDirectory() as folder:
        page = Page(Path(folder), wheels, upstream)
        try:
            yield page
        finally:
            page.kill()


def try_page(path: Path, wheels: Path, upstream: str, engines: dict[str, Path]) -> None:
    with suite.step(path.name) as note, started(wheels, upstream) as page:
        done = 0
        for block in blocks(path):
            what, _, name = block.what.partition(" ")
            if what.strip(",") in ("run", "serve"):
                lines = commands(block.text)
                kinds = block.what.split(", ") if "," in block.what else [block.what] * len(lines)
                for kind, line in zip(kinds, lines, strict=True):
                    {"run": page.run, "serve": page.serve}[kind](line)
                done += len(lines)
            elif what == "stop":
                page.stop()
            elif what == "file":
                (page.folder / name).write_text(page.moved(block.text))
            elif what == "engine" and name in engines:
                note(f"{name}: {check_engine(name, block.text, engines[name])}")
            elif what == "engine":
                note(f"{name}: not checked, as no --engine {name}=FOLDER is given")
            else:
                raise AssertionError(f"unknown comment: {block.what}")
        page.stop()
        note(f"{done} commands run")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="pages (all of docs/engines)")
    parser.add_argument("--wheels", type=Path, required=True, help="folder with the three wheels of this project")
    parser.add_argument("--upstream", default="mooncake-transfer-engine", help="what pip installs of Mooncake at first: a name or a wheel")
    parser.add_argument("--engine", action="append", default=[], metavar="NAME=FOLDER", help="unpacked wheel of an engine")
    arguments = parser.parse_args()
    engines = {name: Path(folder) for name, _, folder in (each.partition("=") for each in arguments.engine)}
    pages = arguments.pages or sorted(PAGES.glob("*.md"))
    if not pages:
        sys.exit(f"no pages in {PAGES}")

    suite.headline("commands of docs/engines")
    for path in pages:
        try_page(path, arguments.wheels.resolve(), arguments.upstream, engines)
    suite.finish()


if __name__ == "__main__":
    main()
