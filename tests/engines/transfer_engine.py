#!/usr/bin/env python3
"""Runs Mooncake's test of its transfer engine: transfer_engine.py FOLDER

FOLDER has `transfer_engine_target.py` and `transfer_engine_initiator_test.py`: mooncake-wheel/tests of Mooncake's source tree. Target
and initiator find each other at followers of three masters, once before and once after the leader is killed, and then by the
handshake. Run it with an interpreter that has this project's packages.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from suite import cluster, finish, headline, run

# The name has no port of its own in it when engines shake hands. The target prints none, so this one does.
SHAKING_TARGET = """
import runpy, sys
from mooncake.engine import TransferEngine
initialize = TransferEngine.initialize
def announced(self, *arguments):
    code = initialize(self, *arguments)
    print("port", self.get_rpc_port(), flush=True)
    return code
TransferEngine.initialize = announced
runpy.run_path(sys.argv[1])
"""


def drive(name: str, folder: Path, metadata: str, command: list[str]) -> None:
    """Starts the target, and runs the initiator's tests."""
    environ = {"MC_METADATA_SERVER": metadata, "TARGET_SERVER_NAME": "127.0.0.1:12345", "INITIATOR_SERVER_NAME": "127.0.0.1:12347"}
    with tempfile.TemporaryDirectory() as temporary:
        target = subprocess.Popen(command, env={**environ, "PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE, text=True, cwd=temporary)
        try:
            assert target.stdout is not None
            for line in target.stdout:
                if line.startswith("port ") and metadata == "P2PHANDSHAKE":
                    environ["TARGET_SERVER_NAME"] = f"127.0.0.1:{line.split()[1]}"
                if line.startswith("Target server ready"):
                    break
            run(name, [sys.executable, "-m", "unittest", "transfer_engine_initiator_test"], environ, [folder], folder)
        finally:
            target.kill()
            target.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    folder: Path = parser.parse_args().folder.resolve()
    target = str(folder / "transfer_engine_target.py")
    headline("Mooncake's test of its transfer engine")
    with cluster(3) as running:
        leader = running.wait_for_leader()
        follower = next(master for master in running.masters if master is not leader)
        metadata = f"http://{follower.http}/metadata"
        drive("metadata at a follower", folder, metadata, [sys.executable, target])
        leader.kill()
        drive("metadata at a follower, the leader killed", folder, metadata, [sys.executable, target])
    drive("handshake", folder, "P2PHANDSHAKE", [sys.executable, "-c", SHAKING_TARGET, target])
    finish()


main()
