"""`mooncake.engine.TransferEngine`, ours: memory of two processes."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from services import ask

from cluster import LOOPBACK, Cluster
from mooncake.engine import TransferEngine, TransferNotify, TransferOpcode
from mooncake.engine.directory import directory

MIB = 1 << 20
PATTERN = bytes(range(256))
HERE = Path(__file__).parent


class Process:
    """An engine in another process, which has registered `size` bytes."""

    def __init__(self, name: str = LOOPBACK, metadata: str = "P2PHANDSHAKE", size: int = MIB) -> None:
        command = [sys.executable, str(HERE / "engine_process.py"), name, metadata, str(size)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        port, address = self._line().split()
        self.port, self.address, self.session = int(port), int(address), f"{LOOPBACK}:{port}"

    def _line(self) -> str:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"it ended with {self.process.wait()}"
        return line.strip()

    def ask(self, line: str) -> str:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self._line()

    def bytes(self, at: int, length: int) -> bytes:
        return bytes.fromhex(self.ask(f"bytes {at} {length}"))

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()


Start = Callable[..., Process]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts engines in processes of their own."""
    started: list[Process] = []

    def begin(*arguments: object, **named: object) -> Process:
        started.append(Process(*arguments, **named))  # type: ignore[arg-type]
        return started[-1]

    yield begin
    for process in started:
        process.end()


def engine(name: str = LOOPBACK, metadata: str = "P2PHANDSHAKE") -> TransferEngine:
    made = TransferEngine()
    assert made.initialize(name, metadata, "tcp", "") == 0
    return made


class Memory:
    """Bytes with an address."""

    def __init__(self, content: bytes) -> None:
        self._buffer = ctypes.create_string_buffer(content, len(content))
        self.address = ctypes.addressof(self._buffer)

    @property
    def content(self) -> bytes:
        return self._buffer.raw


def test_transfers_in_both_directions(start: Start) -> None:
    peer, here = start(), engine()
    memory = Memory(bytes(MIB))
    assert here.register_memory(memory.address, MIB) == 0
    assert here.transfer_sync_read(peer.session, memory.address, peer.address, MIB) == 0
    assert memory.content == PATTERN * (MIB // 256)

    source = Memory(os.urandom(4096))
    assert here.transfer_sync_write(peer.session, source.address, peer.address + 100, 4096, transport_hint="tcp", nic_hint="") == 0
    assert peer.bytes(100, 4096) == source.content
    pieces = [0, 1000, 3000]
    there = [peer.address + at for at in (8192, 0, 20_000)]
    lengths = [1000, 2000, 1096]
    assert here.batch_transfer_sync_write(peer.session, [source.address + at for at in pieces], there, lengths) == 0
    assert peer.bytes(20_000, 1096) == source.content[3000:]
    back = Memory(bytes(4096))
    assert here.batch_transfer_sync_read(peer.session, [back.address + at for at in pieces], there, lengths) == 0
    assert back.content == source.content
    assert here.transfer_sync(peer.session, back.address, peer.address, 1, TransferOpcode.Read) == 0
    assert here.batch_transfer_sync(peer.session, [], [], [], TransferOpcode.Write) == 0


def test_transfers_that_go_on_by_themselves(start: Start) -> None:
    peer, here = start(), engine()
    memory = Memory(bytes(MIB))
    numbers = [
        here.batch_transfer_async_read(peer.session, [memory.address + at], [peer.address + at], [MIB // 4])
        for at in range(0, MIB, MIB // 4)
    ]
    assert 0 not in numbers
    assert here.get_batch_transfer_status(numbers) == 0
    assert memory.content == PATTERN * (MIB // 256)
    assert here.get_batch_transfer_status(numbers) == -1, "their end was told"

    number = here.transfer_submit_write(peer.session, memory.address + 7, peer.address, 100)
    while (status := here.transfer_check_status(number)) == 0:
        pass
    assert status == 1
    assert here.transfer_check_status(number) == -1
    assert peer.bytes(0, 100) == memory.content[7:107]
    failed = here.batch_transfer_async_write(peer.session, [memory.address], [8], [100])
    assert here.get_batch_transfer_status([failed]) == -1


def test_memory(start: Start, caplog: pytest.LogCaptureFixture) -> None:
    peer, here = start(), engine()
    memory = Memory(bytes(MIB))
    assert here.register_memory(memory.address, MIB) == 0
    # As upstream answers.
    assert here.register_memory(memory.address, MIB) == -7
    assert here.register_memory(memory.address + 10, 100) == -7
    assert here.register_memory(memory.address, 0) == -1
    assert here.register_memory(0, 10) == here.register_memory(2**64 - 5, 10) == -1
    assert here.unregister_memory(12_345) == -3
    assert here.unregister_memory(memory.address) == 0
    assert here.batch_register_memory([memory.address, memory.address + 100], [100, 100]) == 0
    assert here.batch_register_memory([memory.address + 200, memory.address], [100, 100]) == -7
    assert here.batch_register_memory([memory.address + 200], [100]) == 0, "of a failed batch none stays"
    assert here.batch_unregister_memory([memory.address, 99, memory.address + 100]) == -3
    assert here.batch_unregister_memory([memory.address + 200]) == 0
    assert here.batch_register_memory([1], [2, 3]) == -1
    assert engine().register_memory(memory.address, MIB) == 0, "each engine has its own"

    assert here.transfer_sync_write(peer.session, memory.address, peer.address + MIB - 1, 2) == -1
    assert "2 bytes at" in caplog.records[-1].message
    assert peer.ask("unregister") == "0"
    assert here.transfer_sync_write(peer.session, memory.address, peer.address, 1) == -1
    assert here.transfer_sync_write(peer.session, 16, peer.address, 1) == -1, "no memory of this process"


def test_managed_buffers(start: Start) -> None:
    peer, here = start(), engine()
    assert here.get_first_buffer_address(peer.session) == peer.address
    own = f"{LOOPBACK}:{here.get_rpc_port()}"
    assert here.get_first_buffer_address(own) == 0
    buffer = here.allocate_managed_buffer(10_000)
    assert here.get_first_buffer_address(own) == here.get_first_buffer_address(LOOPBACK) == buffer != 0
    assert here.write_bytes_to_buffer(buffer, b"some bytes", 10) == 0
    assert here.transfer_sync_write(peer.session, buffer, peer.address, 10) == 0
    assert here.write_bytes_to_buffer(buffer, bytes(10), 10) == 0
    assert here.transfer_sync_read(peer.session, buffer, peer.address, 10) == 0
    assert here.read_bytes_from_buffer(buffer, 10) == b"some bytes"
    assert here.write_bytes_to_buffer(buffer + 9_999, b"ab", 2) == -1
    assert here.read_bytes_from_buffer(buffer + 9_999, 2) == b""
    assert here.free_managed_buffer(buffer, 10_000) == 0
    assert here.free_managed_buffer(buffer, 10_000) == -1
    assert here.read_bytes_from_buffer(buffer, 1) == b""
    assert here.allocate_managed_buffer(0) == 0


def test_words_for_the_peer(start: Start) -> None:
    peer, here = start(), engine()
    memory = Memory(b"x")
    notice = TransferNotify("name", "words")
    assert here.transfer_sync(peer.session, memory.address, peer.address, 1, TransferOpcode.Write, notice) == 0
    assert here.batch_transfer_sync(peer.session, [memory.address], [peer.address], [1], TransferOpcode.Write, notify=notice) == 0
    assert peer.ask("notifies") == str([("name", "words")] * 2)
    assert here.get_notifies() == []


def test_a_peer_that_is_gone(start: Start) -> None:
    peer, here = start(), engine()
    assert here.send_probe(peer.session) == 0
    peer.end()
    assert here.send_probe(peer.session) == -102
    memory = Memory(b"x")
    assert here.transfer_sync_write(peer.session, memory.address, peer.address, 1) == -1
    assert here.batch_transfer_async_read(peer.session, [memory.address], [peer.address], [1]) == 0
    assert here.get_first_buffer_address(peer.session) == 0
    for name in ("", "nothing", "host:port", "no-such-host.invalid:1", f"{LOOPBACK}:70000", f"{LOOPBACK}:0"):
        assert here.send_probe(name) == -102


def test_bad_calls(caplog: pytest.LogCaptureFixture) -> None:
    unused = TransferEngine()
    assert unused.get_rpc_port() == 0
    assert unused.register_memory(4096, 10) == unused.transfer_sync_read("a:1", 1, 1, 1) == unused.transfer_check_status(1) == -1
    assert unused.batch_transfer_async_read("a:1", [1], [1], [1]) == 0
    assert "call initialize first" in caplog.text
    with pytest.raises(TypeError, match=r"TransferOpcode\.Write"):
        engine().transfer_sync("a:1", 1, 1, 1, 1)  # type: ignore[arg-type]
    for metadata in ("etcd://a:2379", "a:2379", "redis://a", ""):
        assert TransferEngine().initialize(LOOPBACK, metadata, "tcp", "") == -1
    assert "P2PHANDSHAKE" in caplog.text
    for fabric in ("nvlink", "hip", "efa", "ascend"):
        assert TransferEngine().initialize(LOOPBACK, "P2PHANDSHAKE", fabric, "") == -1
    here = engine()
    assert here.batch_transfer_sync_read(f"{LOOPBACK}:{here.get_rpc_port()}", [1], [1], [1, 2]) == -1
    assert "give as many of each" in caplog.text
    with pytest.raises((OverflowError, TypeError)):
        here.transfer_sync_read(f"{LOOPBACK}:{here.get_rpc_port()}", -1, 1, 1)


def test_an_engine_that_is_started_on_another_thread(start: Start) -> None:
    peer, here = start(), TransferEngine()
    codes: list[int] = []
    thread = threading.Thread(target=lambda: codes.append(here.initialize(LOOPBACK, "P2PHANDSHAKE", "rdma", "")))
    thread.start()
    thread.join()
    assert codes == [0]
    assert here.initialize(LOOPBACK, "P2PHANDSHAKE", "rdma", "") == 0, "again"
    assert here.send_probe(peer.session) == 0


def test_a_forked_child_makes_one_of_its_own(start: Start) -> None:
    peer, here = start(), engine()
    child = os.fork()
    if child == 0:
        # The parent's engine is refused and dropped, and a new one works.
        refused = here.send_probe(peer.session) != 0
        del here
        os._exit(0 if refused and engine().send_probe(peer.session) == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert here.send_probe(peer.session) == 0


def test_addresses_that_others_reach(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {"machine": "127.0.1.1", "pod": "10.1.2.3", "localhost": LOOPBACK}

    def look_up(host: str, *_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", (names.get(host, host), 9))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    shaking, server = directory("P2PHANDSHAKE"), directory(f"http://{LOOPBACK}:9/metadata")
    assert [shaking.address_of(host) for host in ("machine", "pod", "localhost", "10.1.2.3", LOOPBACK)] == [
        "0.0.0.0", "pod", "localhost", "10.1.2.3", LOOPBACK
    ]  # fmt: skip
    assert [server.address_of(host) for host in ("machine", "pod", "localhost", "10.1.2.3")] == [LOOPBACK, "pod", LOOPBACK, "10.1.2.3"]


def test_names_at_the_masters_through_a_leader_kill(own_masters: Cluster, start: Start) -> None:
    leader = own_masters.wait_for_leader()
    followers = [master for master in own_masters.masters if master is not leader]
    one, two = (f"http://{master.http}/metadata" for master in followers)
    memory = Memory(bytes(100))

    def reads(here: TransferEngine, address: int) -> bool:
        return here.transfer_sync_read("target:1", memory.address, address, 100) == 0 and memory.content == PATTERN[:100]

    here = engine("initiator:1", one)
    assert here.get_first_buffer_address("target:1") == 0
    peer = start("target:1", two)
    assert here.get_first_buffer_address("target:1") == peer.address
    assert reads(here, peer.address)
    assert TransferEngine().initialize("target:1", one, "tcp", "") == -1, "the name is in use"

    leader.kill()
    assert reads(here, peer.address)
    other = engine("another:1", two)
    assert reads(other, peer.address)
    # The target is started again under its name, on another port.
    peer.end()
    again = start("target:1", one)
    assert not reads(here, again.address)
    assert reads(here, again.address)
    key = "/metadata?key=mooncake%2Frpc_meta%2Fanother%3A1"
    assert ask(int(followers[0].http.rpartition(":")[2]), "GET", key)[0] == 200
    del other
    assert ask(int(followers[0].http.rpartition(":")[2]), "GET", key)[0] == 404
