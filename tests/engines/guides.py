"""Runs the command lines of Mooncake's guides and of RBG's example as they stand there, on other ports and with less memory.

    git clone https://github.com/kvcache-ai/Mooncake && git -C Mooncake checkout 3b5a594
    git clone https://github.com/sgl-project/rbg && git -C rbg checkout 993491f
    python tests/engines/guides.py Mooncake --rbg rbg --wheels target/wheels

The services run in a fresh virtual environment with this project's wheels. Each deployment has to become ready as its guide says,
to keep an object that another process puts, and to end with code 0. A command that is in its guide no longer is an error.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import suite
from services import Service

from cluster import LOOPBACK, free_ports

STORE_GUIDE = "docs/source/deployment/mooncake-store-deployment-guide.md"
HTTP_GUIDE = "docs/source/api-reference/http/http-service.md"
KUBERNETES = "docs/source/deployment/kubernetes-deployment-guide/mooncake-on-kubernetes.md"
RBG_GUIDE = "docs/source/deployment/kubernetes-deployment-guide/rbg-integration.md"
HICACHE = "docs/source/deployment/integrations/sglang/hicache-integration-v1.md"
RBG_EXAMPLE = "examples/inference/ecosystem/mooncake/mooncake-store/standalone-mooncake-store.yaml"

# Ports in the guides, each of which is moved to a free one.
PORTS = (50051, 50052, 9003, 8080, 8081, 8088, 8099, 9300)
SEGMENT = "256mb"
VALUE = "a value"

# Puts through one client and reads through another one.
CHECK = """
import sys
from mooncake.store import MooncakeDistributedStore
masters, metadata = sys.argv[1:]
stores = []
for _ in range(2):
    stores.append(MooncakeDistributedStore())
    assert stores[-1].setup("localhost", metadata, 0, 16 << 20, "tcp", "", masters) == 0
assert stores[0].put("guide", b"value") == 0
assert stores[1].get("guide") == b"value"
assert stores[1].remove("guide", True) == 0
for store in stores:
    store.close()
"""


@dataclass(frozen=True)
class Command:
    """A command of a guide, and the port at which it is ready."""

    text: str
    guide: str
    ready: int
    environ: dict[str, str] = field(default_factory=dict)
    added: str = ""
    """Flags that move ports which the guide leaves at their defaults."""
    rest: int | None = None
    """Port of its REST API, through which a value is put, too. Without a local buffer (`MOONCAKE_LOCAL_BUFFER_SIZE=0`) it refuses that, as
    upstream's does."""
    config: dict[str, object] | None = None


MASTER = Command("mooncake_master", STORE_GUIDE, 50051, added="--rpc_port=50051 --metrics_port=9003")
HTTP_MASTER = Command(
    "mooncake_master --enable_http_metadata_server=true --http_metadata_server_host=0.0.0.0 --http_metadata_server_port=8080",
    STORE_GUIDE,
    8080,
    added="--rpc_port=50051 --metrics_port=9003",
)
SERVICE = "python -m mooncake.mooncake_store_service"
P2P = {"MOONCAKE_MASTER": "127.0.0.1:50051", "MOONCAKE_TE_META_DATA_SERVER": "P2PHANDSHAKE"}
HTTP = {"MOONCAKE_MASTER": "127.0.0.1:50051", "MOONCAKE_TE_META_DATA_SERVER": "http://127.0.0.1:8080/metadata"}
CONFIG: dict[str, object] = {
    "local_hostname": "localhost",
    "metadata_server": "http://127.0.0.1:8080/metadata",
    "global_segment_size": 268435456,
    "local_buffer_size": 268435456,
    "protocol": "tcp",
    "device_name": "",
    "master_server_address": "127.0.0.1:50051",
    "tenant_id": "default",
    "enable_client_http_server": False,
    "client_http_port": 9300,
}
# Kubernetes puts a variable of the container into `$(NAME)`.
RBG_MASTER = (
    "mooncake_master --rpc_address $(POD_IP) --rpc_port 50051 --http_metadata_server_host $(POD_IP) --http_metadata_server_port 8080"
    " --enable_http_metadata_server --metrics_port 9003"
)

DEPLOYMENTS: dict[str, list[Command]] = {
    "store guide, P2P handshake": [
        MASTER,
        Command(SERVICE, STORE_GUIDE, 8088, {**P2P}, added="--port 8088", rest=8088),
    ],
    "store guide, HTTP metadata": [
        HTTP_MASTER,
        Command(SERVICE, STORE_GUIDE, 8088, {**HTTP}, added="--port 8088", rest=8088),
    ],
    "store guide, JSON file": [
        HTTP_MASTER,
        Command(f"{SERVICE} --config=<config_path> --port=8081", STORE_GUIDE, 8081, rest=8081, config=CONFIG),
    ],
    "store guide, -D": [
        HTTP_MASTER,
        Command(f"{SERVICE} --config=<config_path> -Dtenant_id=tenant-a", STORE_GUIDE, 8088, added="--port 8088", rest=8088, config=CONFIG),
    ],
    "store guide, mooncake_client": [
        HTTP_MASTER,
        Command(
            'mooncake_client --global_segment_size="4GB" --master_server_address="127.0.0.1:50051"'
            ' --metadata_server="http://127.0.0.1:8080/metadata" --tenant_id="default"',
            STORE_GUIDE,
            50052,
            added="--port=50052",
        ),
    ],
    "HTTP guide, mc_store_rest_server": [
        HTTP_MASTER,
        Command(
            "mc_store_rest_server --config /path/to/mooncake_config.json --port 8080",
            HTTP_GUIDE,
            8088,
            rest=8088,
            config=CONFIG,
        ),
    ],
    "HiCache guide, own metadata server": [
        Command("python -m mooncake.http_metadata_server", HICACHE, 8080, added="--port 8080"),
        Command("mooncake_master --eviction_high_watermark_ratio=0.95", HICACHE, 50051, added="--rpc_port=50051 --metrics_port=9003"),
        Command(f"{SERVICE} --port=8081", HICACHE, 8081, {**HTTP}, rest=8081),
    ],
    "HiCache guide, embedded metadata": [
        Command(
            "mooncake_master --enable_http_metadata_server=true --http_metadata_server_port=8080 --eviction_high_watermark_ratio=0.95",
            HICACHE,
            8080,
            added="--rpc_port=50051 --metrics_port=9003",
        ),
        Command(f"{SERVICE} --config=[config_path] --port=8081", HICACHE, 8081, rest=8081, config=CONFIG),
    ],
    "Kubernetes guide": [
        Command("mooncake_master --rpc_address $(POD_IP) --rpc_port 50051 --metrics_port 9003", KUBERNETES, 50051),
        Command(
            "python3 -m mooncake.mooncake_store_service --port 8088",
            KUBERNETES,
            8088,
            {**P2P, "MOONCAKE_LOCAL_BUFFER_SIZE": "0", "MOONCAKE_PROTOCOL": "rdma"},
        ),
    ],
    "Mooncake's RBG guide": [
        Command(
            "mooncake_master --rpc_address=$(POD_IP) --rpc_port=50051 --eviction_high_watermark_ratio=0.9 --default_kv_lease_ttl=10000",
            RBG_GUIDE,
            50051,
            added="--metrics_port=9003",
        ),
        Command(
            "python3 -m mooncake.mooncake_store_service --port=8099",
            RBG_GUIDE,
            8099,
            {
                **P2P,
                "MOONCAKE_LOCAL_HOSTNAME": LOOPBACK,
                "MOONCAKE_LOCAL_BUFFER_SIZE": "67108864",
                "MOONCAKE_PROTOCOL": "rdma",
                "MC_ENABLE_DEST_DEVICE_AFFINITY": "1",
                "MOONCAKE_ENABLE_CLIENT_HTTP_SERVER": "true",
                "MOONCAKE_CLIENT_HTTP_PORT": "9300",
            },
            rest=8099,
        ),
    ],
    "RBG's example": [
        Command(RBG_MASTER, RBG_EXAMPLE, 8080),
        Command(
            "python3 -m mooncake.mooncake_store_service --port 8088",
            RBG_EXAMPLE,
            8088,
            {**HTTP, "MOONCAKE_LOCAL_BUFFER_SIZE": "0"},
        ),
    ],
}


def words(text: str) -> list[str]:
    """The words of a command, also of one that is broken over lines or a list of YAML."""
    return [word.strip("\"',") for word in re.sub(r"\\\n|^\s*(?:command|args):|^\s*- |[\[\]]", " ", text, flags=re.MULTILINE).split()]


def check_text(command: Command, guides: list[Path]) -> None:
    """Fails if the guide does not have the command."""
    found = [guide / command.guide for guide in guides if (guide / command.guide).is_file()]
    assert found, f"there is no {command.guide}"
    assert " ".join(words(command.text)) in " ".join(words(found[0].read_text())), f"{command.guide} has no `{command.text}`"


class Moved:
    """The ports of one deployment, and the file that takes the place of its configuration."""

    def __init__(self, folder: Path, executables: Path) -> None:
        self.folder, self.executables = folder, executables
        self.ports = dict(zip(PORTS, free_ports(len(PORTS)), strict=True))

    def text(self, text: str) -> str:
        return re.sub(r"(?<![\w.])\d{4,5}(?!\d)", lambda match: str(self.ports.get(int(match[0]), match[0])), text)

    def start(self, command: Command) -> Service:
        given = command.text.replace("$(POD_IP)", LOOPBACK).replace('"4GB"', f'"{SEGMENT}"')
        if command.config is not None:
            path = self.folder / "config.json"
            path.write_text(self.text(json.dumps({**command.config, "local_buffer_size": 16 << 20})))
            given = re.sub(r"<config_path>|\[config_path\]|/path/to/mooncake_config.json", str(path), given)
        if command.ready == 8088:
            # The default and the port of the metadata server of the same guide are both 8080.
            given = given.replace("--port 8080", "--port 8088")
        environ = {name: self.text(value) for name, value in command.environ.items()}
        if "mooncake_store_service" in given and command.config is None:
            environ["MOONCAKE_GLOBAL_SEGMENT_SIZE"] = SEGMENT
        shell = ["bash", "-c", f"exec {self.text(f'{given} {command.added}')}"]
        return Service(self.folder, shell, **suite.clean_environment(self.executables), **environ)


def through_rest(port: int) -> None:
    """Puts and reads a value as the guide does with curl."""
    base = f"http://{LOOPBACK}:{port}/api"
    body = json.dumps({"key": "guide", "value": VALUE}).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{base}/put", body, method="PUT"), timeout=30) as answer:
        assert answer.status == 200
    with urllib.request.urlopen(f"{base}/get/guide", timeout=30) as answer:
        assert answer.read() == VALUE.encode()


def deploy(commands: list[Command], guides: list[Path], executables: Path, note: Callable[[str], None]) -> None:
    for command in commands:
        check_text(command, guides)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        moved = Moved(folder, executables)
        services = []
        for command in commands:
            services.append(moved.start(command))
            stack.callback(services[-1].end, 9)
            services[-1].wait_until_listening(moved.ports[command.ready])
        master = f"{LOOPBACK}:{moved.ports[50051]}"
        metadata = f"http://{LOOPBACK}:{moved.ports[8080]}/metadata"
        check = [str(executables / "python"), "-c", CHECK, master, metadata]
        subprocess.run(check, check=True, capture_output=True, env=suite.clean_environment(executables), text=True)
        for command in commands:
            if command.rest is not None:
                through_rest(moved.ports[command.rest])
        with urllib.request.urlopen(f"http://{LOOPBACK}:{moved.ports[9003]}/metrics/summary", timeout=30) as answer:
            note(answer.read().decode().partition("master=")[2].partition(", leader")[0])
        codes = [service.end() for service in reversed(services)]
        assert set(codes) == {0}, codes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mooncake", type=Path, help="folder with Mooncake's sources")
    parser.add_argument("--rbg", type=Path, help="folder with RBG's sources; without it its example is left out")
    parser.add_argument("--wheels", type=Path, default=suite.REPOSITORY / "target/wheels", help="folder with the wheels")
    given = parser.parse_args()
    guides = [folder.resolve() for folder in [given.mooncake, given.rbg] if folder is not None]

    suite.headline("Command lines of guides")
    with suite.fresh_environment(given.wheels) as executables:
        for name, commands in DEPLOYMENTS.items():
            if given.rbg is None and any(command.guide == RBG_EXAMPLE for command in commands):
                continue
            with suite.step(name) as note:
                deploy(commands, guides, executables, note)
    suite.finish()


if __name__ == "__main__":
    main()
