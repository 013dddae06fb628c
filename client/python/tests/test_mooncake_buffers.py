"""Pools of registered buffers."""

from __future__ import annotations

import gc
import os
import signal
import threading
from typing import Any

import pytest
from conftest import MIB, Open

from cluster import PATIENCE, Cluster, until
from mooncake.store import BufferPool, MooncakeDistributedStore, MooncakeHostMemAllocator, allocator

PAGE = 4096


@pytest.fixture
def store(one_master: Cluster, open_store: Open) -> Any:
    return open_store(one_master, segment=4 * MIB, local_buffer=4 * MIB)


def one_region(store: Any, **more: Any) -> BufferPool:
    return BufferPool(store, min_size_class=PAGE, max_size_class=PAGE, alignment=PAGE, max_regions=1, **more)


def test_a_released_buffer_is_used_again(store: Any) -> None:
    pool = one_region(store)
    lease = pool.acquire(1234)
    assert (lease.size, len(lease.buffer)) == (1234, 1234)
    lease.buffer[:4] = b"abcd"
    address = lease.ptr
    lease.release()
    with pytest.raises(RuntimeError, match="closed"):
        lease.release()
    with pool.buffer(2048) as again:
        assert again.ptr == address
    pool.close()


def test_buffers_carry_objects(store: Any, key: str) -> None:
    pool = BufferPool(store)
    with pool.acquire(PAGE) as lease:
        lease.buffer[:] = bytes([7]) * PAGE
        assert store.put_from(key, lease.ptr, PAGE) == 0
        lease.buffer[:] = bytes(PAGE)
        assert store.get_into(key, lease.ptr, PAGE) == PAGE
        assert bytes(lease.buffer) == bytes([7]) * PAGE
    pool.close()


@pytest.mark.parametrize("size", [0, 1, 128 * 1024 + 1])
def test_sizes(store: Any, size: int) -> None:
    pool = BufferPool(store, MIB, max_size_class=128 * 1024, alignment=PAGE)
    lease = pool.acquire(size)
    assert (lease.size, len(lease.buffer)) == (size, size)
    lease.release()
    pool.close()


def test_the_pool_is_twice_the_local_buffer(store: Any) -> None:
    pool = BufferPool(store)
    first = pool.acquire(4 * MIB)
    second = pool.acquire(4 * MIB, block=False)
    with pytest.raises(RuntimeError, match="exhausted"):
        pool.acquire(1, block=False)
    with pytest.raises(RuntimeError, match="capacity"):
        pool.acquire((1 << 64) - 1)
    first.release()
    # Its memory is given up for buffers of another size.
    small = pool.acquire(PAGE, block=False)
    for lease in (second, small):
        lease.release()
    pool.close()


@pytest.mark.parametrize("timeout", [None, PATIENCE])
def test_waiting_for_a_buffer(store: Any, timeout: float | None) -> None:
    pool = one_region(store)
    lease = pool.acquire(1)
    acquired: list[Any] = []
    thread = threading.Thread(target=lambda: acquired.append(pool.acquire(1, timeout=timeout)))
    thread.start()
    lease.release()
    thread.join(PATIENCE)
    assert len(acquired) == 1
    acquired[0].release()
    pool.close()


def test_waiting_in_vain(store: Any) -> None:
    pool = one_region(store, default_timeout=0.01)
    lease = pool.acquire(1)
    with pytest.raises(RuntimeError, match="timed out"):
        pool.acquire(1)
    with pytest.raises(RuntimeError, match="non-negative"):
        pool.acquire(1, timeout=-1.0)
    lease.release()
    pool.close()


def test_a_view_keeps_its_buffer(store: Any) -> None:
    pool = one_region(store)
    lease = pool.acquire(4)
    view = lease.buffer[1:3]
    with pytest.raises(RuntimeError, match="exported views"):
        lease.release()
    del view
    lease.release()
    pool.close()


def test_a_dropped_lease_gives_its_buffer_back(store: Any) -> None:
    pool = one_region(store)
    lease = pool.acquire(1)
    del lease
    gc.collect()
    pool.acquire(1, block=False).release()
    pool.close()


def test_a_buffer_with_a_view_is_not_given_to_another(store: Any) -> None:
    pool = one_region(store)
    lease = pool.acquire(PAGE)
    view = lease.buffer
    view[:4] = b"mine"
    del lease
    gc.collect()
    with pool.acquire(PAGE, block=False) as other:
        other.buffer[:4] = b"his "
        assert bytes(view[:4]) == b"mine"
    pool.close()


def test_close_waits_for_no_lease(store: Any) -> None:
    pool = BufferPool(store, prewarm_size=PAGE, prewarm_count=2)
    lease = pool.acquire(1)
    with pytest.raises(RuntimeError, match="active leases"):
        pool.close()
    lease.release()
    pool.close()
    with pytest.raises(RuntimeError, match="closed"):
        pool.acquire(1)


def test_arguments_that_can_not_be_used(store: Any, one_master: Cluster, open_store: Open) -> None:
    with pytest.raises(RuntimeError, match="alignment"):
        BufferPool(store, MIB, alignment=12345)
    with pytest.raises(RuntimeError, match="positive"):
        BufferPool(store, MIB, min_size_class=0)
    nothing: Any = None
    for number in (nothing, float("inf")):
        with pytest.raises(TypeError):
            BufferPool(store, number)
        with pytest.raises(TypeError):
            BufferPool(store).acquire(number)
    with pytest.raises(RuntimeError, match="not initialized"):
        BufferPool(MooncakeDistributedStore())
    with pytest.raises(RuntimeError, match="local buffer"):
        BufferPool(open_store(one_master, segment=0, local_buffer=0))


def test_a_forked_child_waits_for_no_thread_of_its_parent(store: Any) -> None:
    pool = BufferPool(store)
    lease = pool.acquire(PAGE)
    locked, forked = threading.Event(), threading.Event()

    def hold_locks() -> None:
        with pool._changed, allocator._guard:
            locked.set()
            forked.wait()

    thread = threading.Thread(target=hold_locks)
    thread.start()
    locked.wait()
    child = os.fork()
    if child == 0:
        # Whatever happens, the child must not go on with the tests.
        code = 1
        try:
            with pytest.raises(RuntimeError, match="closed"):
                pool.acquire(1)
            lease.release()
            memory = MooncakeHostMemAllocator()
            address = memory.alloc(PAGE)
            code = 0 if address and memory.free(address) == 0 else 2
        finally:
            os._exit(code)
    forked.set()
    thread.join()
    try:
        _, status = until("the child ends", lambda: ended if (ended := os.waitpid(child, os.WNOHANG))[0] else None)
    except AssertionError:
        os.kill(child, signal.SIGKILL)
        raise
    assert status == 0
    lease.release()
    pool.close()
