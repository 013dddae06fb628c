"""Runs Mooncake's own tests of its store, unmodified.

    git clone https://github.com/kvcache-ai/Mooncake && git -C Mooncake checkout 3b5a594
    python tests/engines/upstream.py Mooncake/mooncake-wheel/tests --package upstream

The interpreter has the wheels of this project, numpy and pytest; torch, safetensors and msgpack for the tests of
tensors (about 6 GB). `--package` is a folder with an unpacked wheel of upstream: one test imports its
`structured_object_store`.

Two tests of test_batch_replica_clear.py are left out: they expect that a put leases its object, as it does at that commit.
In the released package 0.3.13.post1 it does not, and neither in this pool: see EXPECTED.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import suite

LEASE_SECONDS = 5

TESTS = [
    "test_import_structure.py",
    "test_mooncake_config.py",
    "test_buffer_pool_native.py",
    "test_distributed_object_store.py",
    "test_replicated_distributed_object_store.py",
    "test_batch_replica_clear.py",
    "test_safetensor_functions.py",
    "test_put_get_tensor.py",
]

EXPECTED = {
    "test_batch_replica_clear.py": "not (test_clear_with_active_lease or test_clear_mixed_expired_and_active)",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="Mooncake's folder mooncake-wheel/tests")
    parser.add_argument("--package", type=Path, help="folder into which upstream's wheel was unpacked")
    parser.add_argument("--masters", type=int, nargs="+", default=[1, 3], help="numbers of masters to run with (1 3)")
    arguments = parser.parse_args()
    folder = arguments.folder.resolve()
    # Ours comes first: upstream's folder only adds the modules that we don't have.
    import mooncake

    path = [Path(mooncake.__file__).parent.parent, *([arguments.package.resolve()] if arguments.package else [])]

    suite.headline("Mooncake's own tests")
    for masters in arguments.masters:
        with suite.cluster(masters, "--read-lease", f"{LEASE_SECONDS}s") as cluster:
            environ = {
                # Some tests have the address in their text.
                "MC_MASTERS": cluster.addresses,
                "MASTER_SERVER": cluster.addresses,
                "DEFAULT_KV_LEASE_TTL": str(LEASE_SECONDS * 1000),
            }
            for test in TESTS:
                command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--noconftest", test]
                command += ["-k", EXPECTED[test]] if test in EXPECTED else []
                suite.run(f"{masters} master{'s' if masters > 1 else ''}, {test}", command, environ, path, folder)
    suite.finish()


if __name__ == "__main__":
    main()
