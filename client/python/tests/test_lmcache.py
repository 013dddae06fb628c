"""`mc.lmcache` as LMCache's adapter drives it: submits from one thread, completions through a descriptor."""

from __future__ import annotations

import ctypes
import gc
import itertools
import os
import select
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from cluster import PATIENCE, Cluster, until
from mc.lmcache import Completion, Connector

CHUNK = 4096


@pytest.fixture(scope="module")
def connector(one_master: Cluster) -> Iterator[Connector]:
    connector = Connector(one_master.addresses, segment="64mb")
    yield connector
    connector.close()


def drained(connector: Connector, *numbers: int) -> list[Completion]:
    """Completions of operations in the order of their numbers, taken when the descriptor says that there are some."""
    found: dict[int, Completion] = {}
    poller = select.poll()
    poller.register(connector.event_fd(), select.POLLIN)
    while found.keys() != set(numbers):
        assert poller.poll(PATIENCE * 1000), f"no completion for {set(numbers) - found.keys()}"
        for completion in connector.drain_completions():
            assert completion[0] in numbers and completion[0] not in found, "each operation is answered once"
            found[completion[0]] = completion
    return [found[number] for number in numbers]


def answer(connector: Connector, number: int) -> tuple[bool, list[bool]]:
    ((_, ok, error, flags),) = drained(connector, number)
    assert ok != bool(error) or flags, "a failure has a reason"
    assert all(type(flag) is bool for flag in flags)
    return ok, flags


def views(*values: bytes) -> list[memoryview]:
    return [memoryview(bytearray(value)) for value in values]


def test_batches_answer_for_each_key_in_order(connector: Connector, key: str) -> None:
    stored = [f"{key}-{number}" for number in range(3)]
    values = [os.urandom(CHUNK) for _ in stored]
    assert answer(connector, connector.submit_batch_set(stored, views(*values))) == (True, [True] * 3)

    mixed = [stored[2], f"{key}-absent", stored[0]]
    assert answer(connector, connector.submit_batch_exists(mixed)) == (True, [True, False, True])

    into = views(*[bytes(CHUNK)] * 3)
    number = connector.submit_batch_get(mixed, into)
    ((_, ok, error, flags),) = drained(connector, number)
    assert (ok, flags) == (False, [True, False, True]), "whoever reads only `ok` must not take a miss for a hit"
    assert "1 of 3 keys" in error and "no such object" in error
    assert [bytes(view) for view in into] == [values[2], bytes(CHUNK), values[0]]
    assert answer(connector, connector.submit_batch_get(stored, into)) == (True, [True] * 3)
    assert [bytes(view) for view in into] == values


def test_an_object_of_another_length_is_not_read(connector: Connector, key: str) -> None:
    drained(connector, connector.submit_batch_set([key], views(b"x" * CHUNK)))
    for length in (CHUNK - 1, CHUNK + 1):
        assert answer(connector, connector.submit_batch_get([key], views(bytes(length)))) == (False, [False])


def test_a_key_keeps_its_first_object(connector: Connector, key: str) -> None:
    for value in (b"first", b"other"):
        assert answer(connector, connector.submit_batch_set([key], views(value))) == (True, [True])
    (into,) = views(bytes(5))
    assert answer(connector, connector.submit_batch_get([key], [into])) == (True, [True])
    assert bytes(into) == b"first"


def test_leased_objects_are_deleted_only_by_force(one_master: Cluster, connector: Connector, key: str) -> None:
    drained(connector, connector.submit_batch_set([key], views(b"value")))
    assert answer(connector, connector.submit_batch_exists([key])) == (True, [True])
    ((_, ok, error, flags),) = drained(connector, connector.submit_batch_delete([key, f"{key}-absent"]))
    assert (ok, flags) == (False, [False, False]) and "lease" in error
    forcing = Connector(one_master.addresses, force_delete=True)
    try:
        assert answer(forcing, forcing.submit_batch_delete([key, f"{key}-absent"])) == (True, [True, False])
    finally:
        forcing.close()
    assert answer(connector, connector.submit_batch_exists([key])) == (True, [False])


def test_memory_of_ctypes_is_read_and_written(connector: Connector, key: str) -> None:
    # The views that LMCache makes of its memory objects.
    source, target = (ctypes.c_ubyte * CHUNK)(*range(256)), (ctypes.c_ubyte * CHUNK)()
    drained(connector, connector.submit_batch_set([key], [memoryview(source)]))
    assert answer(connector, connector.submit_batch_get([key], [memoryview(target)])) == (True, [True])
    assert bytes(target) == bytes(source)


def test_batches_without_keys_succeed(connector: Connector) -> None:
    assert answer(connector, connector.submit_batch_set([], [])) == (True, [])
    assert answer(connector, connector.submit_batch_get([], [])) == (True, [])
    assert answer(connector, connector.submit_batch_exists([])) == (True, [])
    assert answer(connector, connector.submit_batch_delete([])) == (True, [])


def test_arguments_that_no_call_can_be_made_of_raise_and_start_nothing(connector: Connector, key: str) -> None:
    memory = bytearray(b"value")
    with pytest.raises(ValueError):
        connector.submit_batch_set([key, f"{key}-2"], [memoryview(memory)])
    with pytest.raises(BufferError, match="read-only"):
        connector.submit_batch_get([key], [memoryview(b"value")])
    with pytest.raises(ValueError, match="one piece"):
        connector.submit_batch_set([key], [memoryview(bytearray(8))[::2]])
    with pytest.raises(TypeError):
        connector.submit_batch_exists([key, 5])  # type: ignore[list-item]
    assert connector.drain_completions() == []
    gc.collect()
    memory.append(0)
    # A key that the pool can't have is a failure of that key.
    assert answer(connector, connector.submit_batch_exists([key, "x" * 5000])) == (True, [False, False])


def test_parameters_are_checked(one_master: Cluster) -> None:
    with pytest.raises(TypeError, match="unknown keyword arguments: replica_num"):
        Connector(one_master.addresses, replica_num=2)  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        Connector(one_master.addresses, put_timeout="soon")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_pending"):
        Connector(one_master.addresses, max_pending=0)
    with pytest.raises((TypeError, ValueError, OverflowError)):
        Connector(one_master.addresses, replicas=-1)


@contextmanager
def paused(cluster: Cluster, timeout: float) -> Iterator[Connector]:
    """A connector whose pool has an object `known` and then no leader that answers."""
    cluster.add_store("16mb")
    timeouts = {"leader_timeout": timeout, "call_timeout": timeout, "get_timeout": timeout, "put_timeout": timeout}
    connector = Connector(cluster.addresses, max_pending=4, local_cache="1mb", **timeouts)
    assert answer(connector, connector.submit_batch_set(["known"], views(b"value")))[0]
    cluster.masters[0].pause()
    yield connector
    cluster.masters[0].resume()
    connector.close()


def test_submits_wait_for_nothing_and_hold_memory_until_their_completion(own_master: Cluster) -> None:
    with paused(own_master, timeout=1.0) as connector:
        source, target = bytearray(CHUNK), bytearray(5)
        of_set = connector.submit_batch_set(["new"], [memoryview(source)])
        of_get = connector.submit_batch_get(["known"], [memoryview(target)])
        of_lookup = connector.submit_batch_exists(["known"])
        # It may be carried out once the master goes on.
        of_delete = connector.submit_batch_delete(["absent"])
        assert connector.drain_completions() == [], "the submits returned while nothing could be answered"

        # The bound: nothing was started, and that is said at once.
        of_other = connector.submit_batch_exists(["known"])
        ((_, ok, error, flags),) = drained(connector, of_other)
        assert (ok, flags) == (False, [False]) and "4 operations are pending" in error

        gc.collect()
        for memory in (source, target):
            with pytest.raises(BufferError):
                memory.append(0)

        # They fail by their deadlines.
        ended = drained(connector, of_set, of_get, of_lookup, of_delete)
        assert [(ok, flags) for _, ok, _, flags in ended] == [(False, [False])] * 4
        assert all(error for _, _, error, _ in ended)
        gc.collect()
        for memory in (source, target):
            memory.append(0)

        # Without a leader this process keeps a put for itself, which is not what a set promises.
        until("the client works without a leader", lambda: connector._opened.client.mode == "local-only")
        assert answer(connector, connector.submit_batch_set(["other"], views(b"value"))) == (False, [False])

        own_master.masters[0].resume()
        until("lookups find it again", lambda: answer(connector, connector.submit_batch_exists(["known"])) == (True, [True]))


def test_close_ends_what_waits(own_master: Cluster) -> None:
    # The timeout is longer than a close may take.
    with paused(own_master, timeout=60.0) as connector:
        source = bytearray(CHUNK)
        numbers = [connector.submit_batch_set([f"new-{number}"], [memoryview(source)]) for number in range(3)]
        closing = [threading.Thread(target=connector.close, daemon=True) for _ in range(2)]
        for thread in closing:
            thread.start()
        for thread in closing:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        assert not connector._is_stuck, "every call has ended"
        # The memory is the caller's again, also before somebody drains.
        gc.collect()
        source.append(0)
        assert [(ok, flags) for _, ok, _, flags in drained(connector, *numbers)] == [(False, [False])] * 3
        with pytest.raises(RuntimeError, match="closed"):
            connector.submit_batch_exists(["known"])
        assert connector.drain_completions() == []


def test_a_call_that_ends_before_its_submit_is_answered(connector: Connector, key: str, monkeypatch: pytest.MonkeyPatch) -> None:
    client, threads = connector._opened.client, []
    answers: list[Completion] = []

    class EndsAtOnce:
        def exist(self, keys: list[str], *, queue: Any) -> Any:
            number = client.exist(keys, queue=queue)
            select.select([queue.fileno()], [], [], PATIENCE)
            # Another thread drains before the submit knows the number of its call.
            thread = threading.Thread(target=lambda: answers.extend(connector.drain_completions()))
            thread.start()
            thread.join(0.1)
            threads.append(thread)
            return number

    monkeypatch.setattr(connector._opened, "client", EndsAtOnce())
    number = connector.submit_batch_exists([key])
    threads[0].join(PATIENCE)
    assert [number for number, *_ in answers] == [number]


def test_submits_that_race_with_close_are_answered_or_raise(one_master: Cluster, key: str) -> None:
    for number in range(3):
        race_with_close(Connector(one_master.addresses, segment="4mb"), f"{key}-{number}")


def race_with_close(connector: Connector, key: str) -> None:
    accepted: list[int] = []
    refused, begun = [], threading.Event()

    def submit(worker: int) -> None:
        for number in itertools.count():
            try:
                accepted.append(connector.submit_batch_set([f"{key}-{worker}-{number}"], views(b"value")))
            except RuntimeError:
                refused.append(worker)
                return
            begun.set()

    threads = [threading.Thread(target=submit, args=(worker,)) for worker in range(2)]
    for thread in threads:
        thread.start()
    assert begun.wait(PATIENCE)
    connector.close()
    for thread in threads:
        thread.join(PATIENCE)
    assert sorted(refused) == [0, 1]
    assert sorted(number for number, *_ in connector.drain_completions()) == sorted(accepted)


def test_a_forked_child_is_told_and_leaves_the_parent_alone(connector: Connector, key: str) -> None:
    child = os.fork()
    if not child:
        # Never back into pytest.
        code = 1
        try:
            connector.close()
            for call in (lambda: connector.submit_batch_exists([key]), connector.drain_completions):
                try:
                    call()
                except RuntimeError as error:
                    code = 0 if "forked" in str(error) else 2
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert answer(connector, connector.submit_batch_set([key], views(b"value"))) == (True, [True])


def test_a_leader_kill_loses_no_acknowledged_set(three_masters: Cluster, key: str) -> None:
    connector = Connector(three_masters.addresses, segment="64mb")
    values: dict[str, bytes] = {}
    waiting: dict[int, str] = {}
    acknowledged: list[str] = []

    def step() -> int:
        """Keeps eight sets under way. Returns how many were acknowledged."""
        while len(waiting) < 8:
            name = f"{key}-{len(values)}"
            values[name] = os.urandom(256)
            waiting[connector.submit_batch_set([name], views(values[name]))] = name
        select.select([connector.event_fd()], [], [], PATIENCE)
        for number, ok, *_ in connector.drain_completions():
            name = waiting.pop(number)
            if ok:
                acknowledged.append(name)
        return len(acknowledged)

    try:
        until("there are sets to lose", lambda: step() >= 50)
        three_masters.wait_for_leader().kill()
        before = len(acknowledged)
        until("sets go on with another leader", lambda: step() >= before + 50)
        drained(connector, *waiting)

        into = views(*[bytes(256)] * len(acknowledged))
        assert answer(connector, connector.submit_batch_exists(acknowledged)) == (True, [True] * len(acknowledged))
        assert answer(connector, connector.submit_batch_get(acknowledged, into)) == (True, [True] * len(acknowledged))
        assert [bytes(view) for view in into] == [values[name] for name in acknowledged]
    finally:
        connector.close()
        three_masters.start()


def test_a_connector_that_is_dropped_gives_its_memory_back(one_master: Cluster, key: str) -> None:
    source = bytearray(CHUNK)
    connector: Any = Connector(one_master.addresses)
    for number in range(20):
        connector.submit_batch_set([f"{key}-{number}"], [memoryview(source)])
    del connector
    gc.collect()
    source.append(0)
