"""`mc.AsyncClient` on asyncio and uvloop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

import mc
from cluster import Cluster

Run = Callable[[Coroutine[Any, Any, None]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    if request.param == "uvloop":
        uvloop = pytest.importorskip("uvloop")
        return lambda main: uvloop.run(main)
    return lambda main: asyncio.run(main)


def test_calls_are_awaited_side_by_side(run: Run, one_master: Cluster, key: str) -> None:
    async def main() -> None:
        async with mc.AsyncClient(one_master.addresses, segment="16mb") as client:
            puts = [client.put(f"{key}{number}", str(number).encode()) for number in range(100)]
            assert set(await asyncio.gather(*puts)) == {mc.Put.STORED}
            gets = [client.get(f"{key}{number}") for number in range(100)]
            assert await asyncio.gather(*gets) == [str(number).encode() for number in range(100)]
            assert await client.get("absent") is None
            assert (await client.get_many([f"{key}1", "absent"])) == [b"1", None]
            target = bytearray(2)
            assert await client.get_into(f"{key}42", target) == 2
            assert target == b"42"
            assert await client.exists(f"{key}1") and await client.size(f"{key}10") == 2
            assert len([listed async for listed in client.list(key)]) == 100
            with pytest.raises(mc.InvalidArgument):
                await client.put("", b"v")
            assert await client.remove(f"{key}1", force=True)

    run(main())


def test_sessions_are_context_managers(run: Run, one_master: Cluster, key: str) -> None:
    async def main() -> None:
        async with mc.AsyncClient(one_master.addresses, segment="16mb") as client:
            session = await client.write_session(key, 4)
            assert session is not None
            async with session:
                await session.write(2, b"34")
                await session.write(0, b"12")
            opened = await client.read_session(key)
            assert opened is not None
            async with opened:
                assert await opened.read(1, 2) == b"23"

    run(main())


def test_a_cancelled_call_ends_when_nothing_touches_its_memory(run: Run, own_master: Cluster) -> None:
    async def main() -> None:
        client = mc.AsyncClient(own_master.addresses, segment="1mb", local_cache=0, call_timeout=60, leader_timeout=60)
        async with client:
            await client.put("k", b"v")
            own_master.masters[0].pause()
            target = bytearray(16)
            task = asyncio.ensure_future(client.get_into("k", target))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(task, 0.2)
            # Its export has ended, so the memory can be resized.
            target.clear()
            own_master.masters[0].resume()
            assert await client.get("k") == b"v"

    run(main())


def test_closing_a_client_ends_the_calls_under_way(run: Run, own_master: Cluster) -> None:
    async def main() -> None:
        client = await mc.AsyncClient(own_master.addresses, local_cache=0, call_timeout=60, leader_timeout=60).connect()
        own_master.masters[0].pause()
        calls = [asyncio.ensure_future(client.get("k")) for _ in range(10)]
        await asyncio.sleep(0)
        await client.close()
        own_master.masters[0].resume()
        assert all(isinstance(error, RuntimeError) for error in await asyncio.gather(*calls, return_exceptions=True))

    run(main())


def test_memory_is_kept_for_a_call_whose_coroutine_is_gone(own_master: Cluster) -> None:
    async def main() -> None:
        async with mc.AsyncClient(own_master.addresses, segment="1mb", local_cache=0) as client:
            await client.put("k", b"v" * 65536)
            own_master.masters[0].pause()
            target = bytearray(65536)
            call = client.get_into("k", target)
            call.send(None)
            call.close()
            with pytest.raises(BufferError):
                target.clear()
            own_master.masters[0].resume()
            while True:
                with contextlib.suppress(BufferError):
                    target.clear()
                    break
                await asyncio.sleep(0.01)

    asyncio.run(main())


def test_a_client_belongs_to_one_event_loop(one_master: Cluster) -> None:
    client = mc.AsyncClient(one_master.addresses)
    first = asyncio.new_event_loop()
    first.run_until_complete(client.connect())
    with pytest.raises(RuntimeError, match="another event loop"):
        asyncio.run(client.get("k"))
    with pytest.raises(RuntimeError, match="connected already"):
        first.run_until_complete(client.connect())
    first.run_until_complete(client.close())
    first.close()


def test_a_client_is_used_after_it_is_connected() -> None:
    async def main() -> None:
        with pytest.raises(RuntimeError, match="not connected"):
            await mc.AsyncClient("127.0.0.1:1").get("k")

    asyncio.run(main())
