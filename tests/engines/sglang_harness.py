"""Starts the services that SGLang's tests of Mooncake need, with SGLang's own class, and uses them as those tests do.

    pip download --no-deps sglang==0.5.23 && unzip -q -d sglang-wheel sglang-*.whl
    python tests/engines/sglang_harness.py sglang-wheel --wheels target/wheels

The class starts `python3 -m mooncake.http_metadata_server`, `mooncake_master` and `mooncake_client` from PATH, where a fresh
virtual environment with this project's wheels comes first. The interpreter that runs this script has the wheels, torch and
what SGLang's class imports besides (about 6 GB).
"""

from __future__ import annotations

import argparse
import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import suite

TEST = Path("sglang/srt/mem_cache/storage/mooncake_store/test_mooncake_store.py")
SEGMENT = 512 << 20
VALUE = 1 << 20

# SGLang's class, made from the environment as its server makes it, and one object that stays.
PUT = f"""
from sglang.srt.mem_cache.storage.mooncake_store.test_mooncake_store import MooncakeStore, make_hicache_storage_config
config = make_hicache_storage_config(is_mla_model=False, tp_rank=0, tp_size=1)
assert MooncakeStore(config).store.put("harness", bytes({VALUE})) == 0
print("put")
"""


def with_full_pipes(services: type[Any]) -> type[Any]:
    """The same class, whose services write into a pipe that is full and that nobody reads."""

    class WithFullPipes(services):
        def _launch(self, name: str, command: list[str], env: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
            self._log_paths[name] = os.devnull
            unread, pipe = os.pipe()
            # The smallest that there is.
            size = fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, 1)
            os.write(pipe, bytes(size))
            try:
                return subprocess.Popen(command, stdout=pipe, stderr=pipe, preexec_fn=os.setsid, env=env)
            finally:
                os.close(pipe)
                self.unread = [*getattr(self, "unread", []), unread]

    return WithFullPipes


def drive(name: str, services: Any, folder: Path) -> None:
    with suite.step(f"{name}: start") as note:
        services.start()
        capacity = services.master_metric("master_total_capacity_bytes")
        assert capacity == SEGMENT, capacity
        assert services.master_metric("master_key_count") == 0
        note(f"{capacity / (1 << 20):.0f} MiB in the pool")
    processes = [services.metadata_process, services.master_process, services.store_process]
    command = [sys.executable, str(folder / TEST)]
    suite.run(f"{name}: test_mooncake_store.py", command, services.server_env(), [folder], folder)
    suite.run(f"{name}: an object that stays", [sys.executable, "-c", PUT], services.server_env(), [folder], folder)
    with suite.step(f"{name}: metrics") as note:
        keys, allocated = (services.master_metric(f"master_{what}") for what in ("key_count", "allocated_bytes"))
        assert keys > 0 and allocated >= VALUE, (keys, allocated)
        note(f"{keys:.0f} keys, {allocated:.0f} bytes")
    with suite.step(f"{name}: stop"):
        services.stop()
        codes = [process.returncode for process in processes]
        assert codes == [0, 0, 0], codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder into which SGLang's wheel was unpacked")
    parser.add_argument("--wheels", type=Path, default=suite.REPOSITORY / "target/wheels", help="folder with the wheels")
    parser.add_argument("--protocols", nargs="*", default=["tcp", "rdma"], help="protocols to run with (tcp rdma)")
    given = parser.parse_args()
    folder = given.folder.resolve()
    sys.path.insert(0, str(folder))
    from sglang.test.mooncake_utils import MooncakeTestServices

    suite.headline("SGLang's MooncakeTestServices")
    with suite.fresh_environment(given.wheels) as executables, tempfile.TemporaryDirectory() as data:
        environ = suite.clean_environment(executables)
        os.environ.clear()
        os.environ.update(environ)
        # The master keeps its data below the current folder.
        os.chdir(data)
        for protocol in given.protocols:
            services = MooncakeTestServices(protocol=protocol, store_segment_size=SEGMENT)
            drive(protocol, services, folder)
        unread = with_full_pipes(MooncakeTestServices)
        drive("tcp, full pipes", unread(protocol="tcp", store_segment_size=SEGMENT), folder)
    suite.finish()


if __name__ == "__main__":
    main()
