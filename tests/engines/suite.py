"""What the scripts in this folder share: one run of a suite against a fresh cluster, and how it is reported."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent
sys.path.insert(0, str(REPOSITORY / "client" / "python" / "tests"))

from cluster import Cluster, Master  # noqa: E402

failures = 0


@contextmanager
def cluster(masters: int, *extra: str) -> Iterator[Cluster]:
    """A cluster on free ports, in a folder that is removed with it."""
    with tempfile.TemporaryDirectory() as folder:
        running = Cluster(Path(folder), masters, *extra)
        try:
            yield running.start()
        finally:
            running.stop()


def headline(what: str) -> None:
    """Prints when and for which commit the following lines are."""
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=REPOSITORY)
    print(f"{what}, {datetime.date.today()}, commit {commit.stdout.strip() or 'unknown'}", flush=True)


def run(name: str, command: list[str], environ: dict[str, str], path: list[Path], folder: Path) -> None:
    """Runs one suite and prints its result, with its output if it fails."""
    global failures
    python_path = [*map(str, path), *filter(None, [os.environ.get("PYTHONPATH")])]
    began = time.monotonic()
    done = subprocess.run(
        command,
        env={**os.environ, **environ, "PYTHONPATH": os.pathsep.join(python_path)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    lines = done.stdout.strip().splitlines() or [""]
    result = "passed" if done.returncode == 0 else f"FAILED with {done.returncode}"
    _print(name, result, began, lines[-1])
    if done.returncode:
        failures += 1
        print("\n".join(f"    {line}" for line in lines[-60:]), flush=True)


@contextmanager
def step(name: str) -> Iterator[Callable[[str], None]]:
    """Prints the result of what runs in it, with what that has noted, or with its error. The script goes on after an error."""
    global failures
    notes: list[str] = []
    began = time.monotonic()
    try:
        yield notes.append
    except Exception:
        failures += 1
        _print(name, "FAILED", began, "")
        traceback.print_exc(file=sys.stdout)
    else:
        _print(name, "passed", began, "; ".join(notes))


def _print(name: str, result: str, began: float, note: str) -> None:
    print(f"{name:66} {result:8} {time.monotonic() - began:5.0f} s   {note}", flush=True)


@contextmanager
def fresh_environment(wheels: Path) -> Iterator[Path]:
    """A new virtual environment with nothing but this project's wheels: the folder of its executables."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        found = [str(wheel) for wheel in wheels.resolve().glob("mc_kvcache*.whl")]
        if not found:
            sys.exit(f"{wheels} has no wheels of this project: run client/python/pack")
        pip = [f"{folder}/bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
        subprocess.run([*pip, *found], check=True)
        yield Path(folder) / "bin"


def clean_environment(executables: Path) -> dict[str, str]:
    """The variables of this process without settings of a pool, and with these executables before all others."""
    settings = ("MC_", "MOONCAKE_", "RBG_", "KUBERNETES_", "PYTHONPATH")
    environ = {key: value for key, value in os.environ.items() if not key.startswith(settings)}
    return environ | {"PATH": f"{executables}{os.pathsep}{environ['PATH']}"}


class LeaderKill:
    """Kills the leader as soon as the condition holds, while something else runs."""

    def __init__(self, running: Cluster, condition: Callable[[Master], bool]) -> None:
        self.struck = False
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, args=(running, condition))

    def _watch(self, running: Cluster, condition: Callable[[Master], bool]) -> None:
        leader = running.wait_for_leader()
        while not self._ended.wait(0.01):
            if condition(leader):
                leader.kill()
                self.struck = True
                return

    def __enter__(self) -> LeaderKill:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()


def finish() -> None:
    """Ends with 1 if a suite failed."""
    sys.exit(1 if failures else 0)
