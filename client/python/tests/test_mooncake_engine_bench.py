"""`transfer_engine_bench`, with its two ends as processes."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from services import Start, check_guide, script, starting

from cluster import LOOPBACK, until
from mooncake._services.bench_flags import TABLE

SMALL = ["--protocol=tcp", "--buffer_size=1048576", "--block_size=4096", "--batch_size=8", "--threads=2", "--duration=1"]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with starting(tmp_path, script("transfer_engine_bench")) as begin:
        yield begin


def test_the_guide_has_its_flags() -> None:
    check_guide("transfer_engine_bench", TABLE)


def test_both_ends(start: Start) -> None:
    target = start("--mode=target", f"--local_server_name={LOOPBACK}", *SMALL)

    def name() -> str | None:
        found = re.search(r"target (\S+) is ready", target.text)
        return found and found[1]

    segment = until("the target is ready", name)
    for operation in ("read", "write"):
        initiator = start(f"--operation={operation}", f"--segment_id={segment}", "--report_unit=MiB", *SMALL)
        assert initiator.code() == 0, initiator.text
        assert re.search(r"Test completed: duration \d+\.\d\d, batch count [1-9]\d*, throughput \d+\.\d\d MiB/s", initiator.text)
    assert target.end(signal.SIGTERM) == 0, target.text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--segment_id is missing"),
        (["--segment_id=a:1", "--operation=copy"], "write read or write"),
        (["--segment_id=a:1", "--mode=both"], "write initiator or target"),
        (["--segment_id=a:1", "--threads=0"], "--threads=0"),
        (["--segment_id=a:1", "--report_unit=TB"], "--report_unit=TB"),
        (["--segment_id=a:1", "--buffer_size=1024"], "--buffer_size=1024 is less"),
        (
            ["--segment_id=127.0.0.1:1", f"--local_server_name={LOOPBACK}", "--buffer_size=1048576", "--threads=1", "--batch_size=1"],
            "127.0.0.1:1",
        ),
        (["--segment_id=a:1", "--protocol=nvlink"], "the engine does not start"),
        (["--backend=tent", "--segment_id=a:1"], "--backend"),
    ],
)
def test_bad_command_lines(start: Start, arguments: list[str], words: str) -> None:
    service = start(*arguments)
    assert service.code() == 1
    assert words in service.text
