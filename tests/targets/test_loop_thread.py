"""The loop on which servers run: results, errors, what gets stuck, and the end."""

from __future__ import annotations

import asyncio
import threading

import pytest

from pytest_grpc_conformance.targets.loop_thread import LoopStuck, LoopThread


@pytest.fixture
def loop() -> LoopThread:
    return LoopThread("loop under test")


async def where() -> str:
    return threading.current_thread().name


async def fails(error: BaseException) -> None:
    raise error


def test_coroutine_runs_on_the_thread_of_the_loop_and_its_result_comes_back(loop: LoopThread) -> None:
    assert loop.run(where(), 5) == "loop under test"
    assert loop.alive
    loop.close()
    assert not loop.alive
    assert "loop under test" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.parametrize(
    "error", [ValueError("no"), TimeoutError("its own"), asyncio.TimeoutError("its own")], ids=repr
)
def test_error_of_the_coroutine_is_passed_on_as_it_is(loop: LoopThread, error: Exception) -> None:
    with pytest.raises(type(error)) as caught:
        loop.run(fails(error), 5)
    assert not isinstance(caught.value, LoopStuck)
    assert caught.value.args == error.args
    loop.close()


def test_coroutine_that_takes_too_long_is_cancelled_and_named(loop: LoopThread) -> None:
    cancelled = threading.Event()

    async def waits() -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(LoopStuck, match=r"waits did not end within 0\.05 s"):
        loop.run(waits(), 0.05)
    assert cancelled.wait(5)
    assert loop.run(where(), 5) == "loop under test", "the loop itself is well"
    loop.close()


def test_blocked_loop_is_told_from_a_slow_coroutine_by_its_close(loop: LoopThread) -> None:
    go_on = threading.Event()

    async def blocks() -> None:
        go_on.wait(30)

    with pytest.raises(LoopStuck, match="blocks did not end"):
        loop.run(blocks(), 0.05)
    with pytest.raises(LoopStuck, match="something blocks it"):
        loop.close(0.05)
    assert loop.alive
    go_on.set()
    loop.close()
    assert not loop.alive


def test_close_cancels_what_is_left_and_may_be_repeated(loop: LoopThread) -> None:
    ended = threading.Event()

    async def lives_on() -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    async def begins() -> asyncio.Task[None]:
        task = asyncio.ensure_future(lives_on())
        await asyncio.sleep(0)
        return task

    task = loop.run(begins(), 5)
    loop.close()
    loop.close()
    assert task.cancelled()
    assert ended.is_set()


def test_blocked_loop_cannot_keep_the_interpreter_from_ending(loop: LoopThread) -> None:
    assert {thread.daemon for thread in threading.enumerate() if thread.name == "loop under test"} == {True}
    loop.close()


def test_many_threads_may_use_one_loop(loop: LoopThread) -> None:
    names: list[str] = []
    users = [threading.Thread(target=lambda: names.append(loop.run(where(), 10))) for _ in range(20)]
    for user in users:
        user.start()
    for user in users:
        user.join(10)
    assert names == ["loop under test"] * 20
    loop.close()
