"""Runs Mooncake's own tests of its command lines, dummy clients and transfer engine, unmodified.

    git clone https://github.com/kvcache-ai/Mooncake && git -C Mooncake checkout 3b5a594
    python tests/engines/upstream_services.py Mooncake/mooncake-wheel/tests --wheels target/wheels

The services run in a fresh virtual environment with this project's wheels. The tests run in the interpreter that runs this
script: it has the wheels, numpy and pytest, and torch for the dummy client's tensors (about 6 GB).

Ports are those of the tests, which have them in their text: 50052 for the real client, and 61351, 61352 and 19003 for
test_cli.py. With `--engine FOLDER` upstream's own transfer engine is tested, which keeps its records in our masters
(transfer_engine.py has the tests of ours).
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

import suite
from services import Service

from cluster import LOOPBACK, free_ports, until

LEASE_MS = 5_000
REAL_CLIENT = 50052
# Every dummy client of the suite puts up to 64 MiB at once.
SEGMENT = "1GB"

# It calls put_tensor_with_parallelism and its like, which upstream has removed in 0.3.14. What it does before that passes.
EXPECTED = "not test_tensor_operations"

# A function of test_cli.py returns whether it passed, and prints a cross for what failed on the way.
CLI = """
import contextlib, io, sys
import test_cli
output = io.StringIO()
with contextlib.redirect_stdout(output):
    passed = test_cli.{test}()
print(output.getvalue())
sys.exit(not passed or "\\N{{CROSS MARK}}" in output.getvalue())
"""


@contextmanager
def running(service: Service) -> Iterator[Service]:
    try:
        yield service
    finally:
        service.end()


def says(service: Service, words: str) -> bool:
    """Whether a service has printed these words. Its end is an error."""
    assert service.process.poll() is None, service.text
    return words in service.text


def command_lines(folder: Path, environ: dict[str, str]) -> None:
    for test in ("test_entry_point_installed", "test_run_master_and_client"):
        # The master keeps its data below the current folder.
        with tempfile.TemporaryDirectory() as data:
            command = [sys.executable, "-c", CLI.format(test=test)]
            suite.run(f"test_cli.py, {test}", command, environ, [folder], Path(data))


def dummy_clients(folder: Path, environ: dict[str, str], executables: Path, masters: int) -> None:
    name = f"{masters} master{'s' if masters > 1 else ''}"
    environ = {**environ, "DEFAULT_KV_LEASE_TTL": str(LEASE_MS)}
    with ExitStack() as stack:
        cluster = stack.enter_context(suite.cluster(masters, "--read-lease", f"{LEASE_MS}ms"))
        data = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        command = [str(executables / "mooncake_client"), f"--master_server_address={cluster.addresses}"]
        command += [f"--port={REAL_CLIENT}", f"--global_segment_size={SEGMENT}", f"--host={LOOPBACK}"]
        real = stack.enter_context(running(Service(data, command, **environ)))
        real.wait_until_listening(REAL_CLIENT)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", "test_dummy_client.py"]
        suite.run(f"{name}, test_dummy_client.py", [*command, "-k", EXPECTED], environ, [], folder)
        several = [sys.executable, "test_multi_dummy_clients.py", "--client-id"]
        other = subprocess.Popen([*several, "client1"], env=environ, cwd=folder, stderr=subprocess.DEVNULL)
        suite.run(f"{name}, test_multi_dummy_clients.py, client2", [*several, "client2"], environ, [], folder)
        with suite.step(f"{name}, test_multi_dummy_clients.py, client1"):
            assert other.wait() == 0, other.returncode
        environ["MASTER_SERVER"] = cluster.addresses
        suite.run(f"{name}, test_meta_server.py", [sys.executable, "test_meta_server.py", LOOPBACK], environ, [], folder)


def transfer_engine(folder: Path, environ: dict[str, str], engine: Path) -> None:
    """Upstream's pair of processes, which find each other through the metadata service of three masters."""
    with suite.cluster(3) as cluster, tempfile.TemporaryDirectory() as data:
        for number, master in enumerate(cluster.masters):
            target, initiator = (f"{LOOPBACK}:{port}" for port in free_ports(2))
            names = {"TARGET_SERVER_NAME": target, "INITIATOR_SERVER_NAME": initiator}
            names["MC_METADATA_SERVER"] = f"http://{master.http}/metadata"
            both = {**environ, **names, "MC_FORCE_TCP": "true", "CIRCLE": "100", "PYTHONUNBUFFERED": "1"}
            both["PYTHONPATH"] = str(engine)
            command = [sys.executable, str(folder / "transfer_engine_target.py")]
            with running(Service(Path(data), command, **both)) as service:
                until("the target is ready", partial(says, service, "Target server ready"))
                test = [sys.executable, "transfer_engine_initiator_test.py"]
                suite.run(f"transfer_engine_initiator_test.py, metadata of master {number}", test, both, [engine], folder)
                # It waits in a loop, and knows no other end.
                service.end(signal.SIGKILL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Mooncake's folder mooncake-wheel/tests")
    parser.add_argument("--wheels", type=Path, default=suite.REPOSITORY / "target/wheels", help="folder with the wheels")
    parser.add_argument("--masters", type=int, nargs="+", default=[1, 3], help="numbers of masters to run with (1 3)")
    parser.add_argument("--engine", type=Path, help="folder with an unpacked wheel of upstream, to test its engine with our metadata")
    given = parser.parse_args()
    folder = given.folder.resolve()

    suite.headline("Mooncake's own tests of its services")
    with suite.fresh_environment(given.wheels) as executables:
        environ = suite.clean_environment(executables)
        command_lines(folder, environ)
        for masters in given.masters:
            dummy_clients(folder, environ, executables, masters)
        if given.engine:
            transfer_engine(folder, environ, given.engine.resolve())
    suite.finish()


if __name__ == "__main__":
    main()
