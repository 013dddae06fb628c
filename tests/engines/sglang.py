"""Runs SGLang's own test of its Mooncake storage, unmodified.

    pip download --no-deps sglang==0.5.23 && unzip -q -d sglang-wheel sglang-*.whl
    python tests/engines/sglang.py sglang-wheel

The interpreter has the wheels of this project, torch, and what the test imports besides (about 6 GB).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import suite

TEST = Path("sglang/srt/mem_cache/storage/mooncake_store/test_mooncake_store.py")
MIB = 1 << 20
HTTP = "http://127.0.0.1:8080/metadata"
P2P = "P2PHANDSHAKE"

# Masters, bytes of each rank's segment (0: a store in another process), metadata server, protocol.
VARIANTS = [
    (1, 64 * MIB, P2P, "tcp"),
    (3, 64 * MIB, P2P, "tcp"),
    (3, 64 * MIB, P2P, "rdma"),
    (3, 64 * MIB, HTTP, "tcp"),
    (3, 16 * MIB, P2P, "tcp"),
    (1, 0, P2P, "tcp"),
    (3, 0, HTTP, "tcp"),
]


def environment(masters: str, segment: int, metadata: str, protocol: str) -> dict[str, str]:
    return {
        "MOONCAKE_MASTER": masters,
        "MOONCAKE_GLOBAL_SEGMENT_SIZE": str(segment),
        "MOONCAKE_TE_META_DATA_SERVER": metadata,
        "MOONCAKE_PROTOCOL": protocol,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="folder into which SGLang's wheel was unpacked")
    folder = parser.parse_args().folder.resolve()
    command = [sys.executable, str(folder / TEST)]

    suite.headline("SGLang's test_mooncake_store.py")
    for masters, segment, metadata, protocol in VARIANTS:
        memory = f"{segment // MIB} MiB embedded" if segment else "a store in another process"
        found = "P2PHANDSHAKE" if metadata == P2P else "HTTP metadata"
        name = f"{masters} master{'s' if masters > 1 else ''}, {memory}, {found}, {protocol}"
        with suite.cluster(masters) as cluster:
            if not segment:
                cluster.add_store("256mb")
            suite.run(name, command, environment(cluster.addresses, segment, metadata, protocol), [folder], folder)

    # The test removes its keys with its stores, so a key means that it is in the middle.
    with (
        suite.cluster(3) as cluster,
        suite.LeaderKill(cluster, lambda leader: leader.status().get("keys", 0) > 0) as kill,
    ):
        environ = environment(cluster.addresses, 64 * MIB, P2P, "tcp")
        suite.run("3 masters, the leader is killed in the middle", command, environ, [folder], folder)
        if not kill.struck:
            sys.exit("the leader was not killed: the test had no keys when it was watched")
    suite.finish()


if __name__ == "__main__":
    main()
