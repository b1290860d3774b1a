"""Waiting for a milestone: from threads and loops, to its end, to its deadline, and to the end of the engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from pytest_grpc_conformance.engines.base import EngineDown
from pytest_grpc_conformance.engines.milestone import DeadlineMissed, Milestone, Noticeboard


class WatchedBoard(Noticeboard):
    """Tells when somebody has begun to wait, so that no test has to sleep."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = threading.Semaphore(0)

    def add(self, subject: object, waiter: Any) -> None:
        super().add(subject, waiter)
        self.waits.release()


class Counter:
    """A subject with one milestone."""

    def __init__(self) -> None:
        self.board = WatchedBoard()
        self.value = 0

    def at_least(self, value: int, timeout: float = 10.0) -> Milestone:
        return Milestone(
            f"at_least({value})", timeout, self.board, self, lambda: self.value >= value, lambda: f"value {self.value}"
        )

    def change(self, value: int) -> None:
        self.value = value
        self.board.notice(self)

    def until_somebody_waits(self, number: int = 1) -> None:
        for _ in range(number):
            assert self.board.waits.acquire(timeout=10)


class Waiting:
    """A thread that waits for a milestone."""

    def __init__(self, milestone: Milestone) -> None:
        self._milestone = milestone
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    def _wait(self) -> None:
        try:
            self._milestone.wait()
        except BaseException as error:
            self._error = error

    def end(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive()
        if self._error is not None:
            raise self._error


async def attend(milestone: Milestone) -> None:
    await milestone


@pytest.fixture
def counter() -> Counter:
    return Counter()


def test_a_milestone_that_is_reached_does_not_wait(counter, manual_loop):
    counter.value = 1
    counter.at_least(1).wait(timeout=0)
    manual_loop.run_until_complete(attend(counter.at_least(1).within(0)))
    assert counter.at_least(1).reached
    assert not counter.at_least(2).reached
    assert not counter.board.waiting


def test_a_thread_waits_until_it_is_reached(counter):
    waiting = Waiting(counter.at_least(2))
    counter.until_somebody_waits()
    counter.change(1)
    assert counter.board.waiting
    counter.change(2)
    waiting.end()
    assert not counter.board.waiting


def test_a_task_waits_until_it_is_reached(counter, thread_loop):
    waiting = thread_loop.start(attend(counter.at_least(2)))
    counter.until_somebody_waits()
    counter.change(1)
    thread_loop.call(lambda: None)
    assert not waiting.done()
    counter.change(2)
    waiting.result(10)
    assert not counter.board.waiting


@pytest.mark.asyncio
async def test_a_task_may_itself_bring_it_about(counter):
    task = asyncio.create_task(attend(counter.at_least(1)))
    while not counter.board.waiting:
        await asyncio.sleep(0)
    counter.change(1)
    await task


def test_one_milestone_serves_several_threads_and_loops(counter, thread_loops):
    milestone = counter.at_least(1)
    tasks = [loop.start(attend(milestone)) for loop in (thread_loops(), thread_loops()) for _ in range(2)]
    threads = [Waiting(milestone) for _ in range(2)]
    counter.until_somebody_waits(6)
    counter.change(1)
    for task in tasks:
        task.result(10)
    for thread in threads:
        thread.end()
    assert not counter.board.waiting


def test_a_notice_about_another_subject_wakes_nobody(counter):
    waiting = Waiting(counter.at_least(1))
    counter.until_somebody_waits()
    counter.value = 1
    counter.board.notice("another subject")
    assert counter.board.waiting
    counter.board.notice(counter)
    waiting.end()


def test_what_was_reached_counts_though_it_has_passed(counter, manual_loop, thread_loop):
    task = manual_loop.create_task(attend(counter.at_least(1)))
    manual_loop.turn()
    counter.change(1)
    counter.change(0)
    manual_loop.run_until_complete(task)


def test_a_deadline_that_was_met_leaves_no_timer(counter, manual_loop):
    task = manual_loop.create_task(attend(counter.at_least(1)))
    manual_loop.turn()
    counter.change(1)
    manual_loop.run_until_complete(task)
    assert all(timer.cancelled() for timer in manual_loop._scheduled)


@pytest.mark.parametrize(
    "wait",
    [
        lambda milestone, loop: milestone.wait(timeout=0.125),
        lambda milestone, loop: milestone.within(0.125).wait(),
        lambda milestone, loop: loop.run_until_complete(attend(milestone.within(0.125))),
    ],
    ids=["wait-timeout", "within-wait", "within-await"],
)
def test_a_missed_deadline_says_what_stood_where(counter, manual_loop, wait: Callable[[Milestone, Any], None]):
    counter.value = 3
    with pytest.raises(DeadlineMissed) as caught:
        wait(counter.at_least(5), manual_loop)
    assert str(caught.value) == "waited 0.125 s for at_least(5): value 3"
    assert isinstance(caught.value, TimeoutError)
    assert not counter.board.waiting


def test_a_whole_number_of_seconds_is_written_as_one(counter):
    with pytest.raises(DeadlineMissed, match=r"waited 0 s for at_least\(1\): value 0"):
        counter.at_least(1).wait(timeout=0.0)


def test_the_own_deadline_holds_where_no_other_is_given(counter, manual_loop):
    with pytest.raises(DeadlineMissed, match=r"waited 0.0625 s"):
        counter.at_least(1, timeout=0.0625).wait()
    with pytest.raises(DeadlineMissed, match=r"waited 0.0625 s"):
        manual_loop.run_until_complete(attend(counter.at_least(1, timeout=0.0625)))


def test_blocking_on_a_running_loop_is_refused(counter, thread_loop):
    counter.value = 1
    with pytest.raises(RuntimeError, match=r"waiting for at_least\(1\) would block the running event loop; await it"):
        thread_loop.call(counter.at_least(1).wait)


def test_a_cancelled_wait_leaves_nothing_behind(counter, manual_loop):
    task = manual_loop.create_task(attend(counter.at_least(1)))
    manual_loop.turn()
    assert counter.board.waiting
    task.cancel()
    manual_loop.turn()
    assert task.cancelled()
    assert not counter.board.waiting
    counter.change(1)
    manual_loop.turn()


def test_a_wait_that_is_cancelled_after_its_wake_up_is_harmless(counter, manual_loop):
    task = manual_loop.create_task(attend(counter.at_least(1)))
    manual_loop.turn()
    counter.change(1)
    task.cancel()
    manual_loop.turn()
    assert task.cancelled()


def test_a_loop_that_was_closed_amid_a_wait_stops_no_other(counter, thread_loops, manual_loop):
    from engine_loops import ManualLoop

    gone = ManualLoop()
    abandoned = attend(counter.at_least(1))
    step = abandoned.send
    asyncio.set_event_loop(None)
    gone.call_soon(lambda: step(None))  # a task would complain when its loop goes
    gone.turn()
    counter.until_somebody_waits()
    other = thread_loops().start(attend(counter.at_least(1)))
    counter.until_somebody_waits()
    gone.close()
    counter.change(1)
    other.result(10)
    abandoned.close()


def test_the_end_of_the_engine_ends_every_wait_at_once(counter, thread_loop):
    task = thread_loop.start(attend(counter.at_least(1)))
    thread = Waiting(counter.at_least(2))
    counter.until_somebody_waits(2)
    counter.board.close()
    with pytest.raises(EngineDown, match=r"engine closed while waiting for at_least\(1\): value 0"):
        task.result(10)
    with pytest.raises(EngineDown, match=r"engine closed while waiting for at_least\(2\): value 0"):
        thread.end()
    assert not counter.board.waiting


def test_after_the_end_of_the_engine_nobody_begins_to_wait(counter, manual_loop):
    counter.value = 1
    counter.board.close()
    counter.at_least(1).wait()
    manual_loop.run_until_complete(attend(counter.at_least(1)))
    begin = time.monotonic()
    with pytest.raises(EngineDown):
        counter.at_least(2, timeout=20).wait()
    with pytest.raises(EngineDown):
        manual_loop.run_until_complete(attend(counter.at_least(2, timeout=20)))
    assert time.monotonic() - begin < 20, "the deadline was waited for"
