"""Memory of GPUs, with a driver for tests in a process of its own: once it is loaded, it stays."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpu
from cluster import Cluster


def test_memory_of_a_gpu_is_a_source_and_a_target(one_master: Cluster, tmp_path: Path) -> None:
    script = Path(__file__).with_name("gpu_process.py")
    command = [sys.executable, str(script), str(gpu.build(tmp_path)), one_master.addresses]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
