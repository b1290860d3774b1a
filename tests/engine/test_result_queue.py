"""The contract of the queue that carries results from worker threads to event loops."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from engine_loops import ManualLoop, finish
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_grpc_conformance.engines.result_queue import ConsumerGone, ResultQueue, deliver


async def take(queue: ResultQueue[Any], count: int) -> list[Any]:
    return [await queue.get() for _ in range(count)]


def in_thread(function: Any, *args: Any) -> None:
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


def test_order_is_kept(thread_loop):
    queue = ResultQueue(thread_loop.loop)
    taken = thread_loop.start(take(queue, 30))

    def produce() -> None:
        for number in range(0, 30, 3):
            queue.put(number)
            deliver([(queue, number + 1), (queue, number + 2)])

    in_thread(produce)
    assert taken.result(10) == list(range(30))


def test_order_of_each_producer_is_kept(thread_loop):
    queue = ResultQueue(thread_loop.loop)
    taken = thread_loop.start(take(queue, 800))
    start = threading.Barrier(4)

    def produce(producer: int) -> None:
        start.wait()
        for number in range(100):
            deliver([(queue, (producer, 2 * number)), (queue, (producer, 2 * number + 1))])

    threads = [threading.Thread(target=produce, args=(producer,)) for producer in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    items = taken.result(10)
    for producer in range(4):
        assert [number for origin, number in items if origin == producer] == list(range(200))


def test_a_batch_wakes_each_loop_once(manual_loop, thread_loop):
    here = [ResultQueue(manual_loop) for _ in range(3)]
    there = [ResultQueue(thread_loop.loop) for _ in range(2)]
    getters = [thread_loop.start(take(queue, 4)) for queue in there]
    thread_loop.call(lambda: None)
    before = thread_loop.loop.wake_ups
    deliver([(queue, number) for number in range(4) for queue in (*here, *there)])
    assert manual_loop.wake_ups == 1
    assert thread_loop.loop.wake_ups == before + 1
    assert [getter.result(10) for getter in getters] == [[0, 1, 2, 3]] * 2
    assert [list(queue.arrived) for queue in here] == [[0, 1, 2, 3]] * 3


def test_a_batch_wakes_every_queue_of_a_loop(manual_loop):
    queues = [ResultQueue(manual_loop) for _ in range(3)]
    getters = [manual_loop.create_task(queue.get()) for queue in queues]
    manual_loop.turn()
    deliver(list(zip(queues, "abc", strict=True)))
    assert [manual_loop.run_until_complete(getter) for getter in getters] == ["a", "b", "c"]


def test_a_queue_that_was_drained_delivers_again(manual_loop):
    queue = ResultQueue(manual_loop)
    for item in range(3):
        getter = manual_loop.create_task(queue.get())
        manual_loop.turn()
        assert not getter.done()
        in_thread(queue.put, item)
        assert manual_loop.run_until_complete(getter) == item
        assert not queue.arrived


def test_a_getter_that_is_cancelled_while_it_waits_loses_nothing(manual_loop):
    queue = ResultQueue(manual_loop)
    getter = manual_loop.create_task(queue.get())
    manual_loop.turn()
    getter.cancel()
    manual_loop.turn()
    assert getter.cancelled()
    assert queue._waiters == []
    queue.put("a")
    assert manual_loop.run_until_complete(queue.get()) == "a"


def test_a_getter_that_is_cancelled_after_its_notification_loses_nothing(manual_loop):
    queue = ResultQueue(manual_loop)
    getter = manual_loop.create_task(queue.get())
    manual_loop.turn()
    deliver([(queue, "a"), (queue, "b")])
    manual_loop.turn(1)  # notified, but not resumed yet
    getter.cancel()
    manual_loop.turn()
    assert getter.cancelled()
    assert manual_loop.run_until_complete(take(queue, 2)) == ["a", "b"]


def test_when_one_getter_is_cancelled_another_gets_the_item(manual_loop):
    queue = ResultQueue(manual_loop)
    first, second = (manual_loop.create_task(queue.get()) for _ in range(2))
    manual_loop.turn()
    queue.put("a")
    manual_loop.turn(1)
    first.cancel()
    assert manual_loop.run_until_complete(second) == "a"
    assert first.cancelled()


def test_a_getter_that_finds_nothing_left_waits_on(manual_loop):
    queue = ResultQueue(manual_loop)
    first, second = (manual_loop.create_task(queue.get()) for _ in range(2))
    manual_loop.turn()
    queue.put("a")
    assert manual_loop.run_until_complete(first) == "a"
    manual_loop.turn()
    assert not second.done()
    queue.put("b")
    assert manual_loop.run_until_complete(second) == "b"


def test_a_late_notification_for_a_finished_getter_is_harmless(manual_loop):
    queue = ResultQueue(manual_loop)
    queue.put("a")
    assert manual_loop.run_until_complete(queue.get()) == "a"  # before the notification ran
    getter = manual_loop.create_task(queue.get())
    manual_loop.turn()
    assert not getter.done()
    queue.put("b")  # its notification comes once the getter has been cancelled
    getter.cancel()
    manual_loop.turn()
    assert not manual_loop.complaints
    assert manual_loop.run_until_complete(queue.get()) == "b"


def test_a_stopped_loop_finds_everything_when_it_runs_again(manual_loop):
    queue = ResultQueue(manual_loop)
    getter = manual_loop.create_task(take(queue, 4))
    manual_loop.turn()
    in_thread(queue.put, 1)
    in_thread(deliver, [(queue, 2), (queue, 3)])
    manual_loop.turn()
    in_thread(queue.put, 4)
    assert manual_loop.run_until_complete(getter) == [1, 2, 3, 4]


def test_put_to_a_closed_loop_says_that_the_consumer_is_gone(manual_loop):
    queue = ResultQueue(manual_loop)
    manual_loop.close()
    with pytest.raises(ConsumerGone, match="the event loop of the consumer is closed") as caught:
        queue.put("a")
    assert caught.value.queues == (queue,)
    assert isinstance(caught.value, RuntimeError)


@pytest.mark.parametrize("gone_first", [True, False], ids=["gone-first", "gone-last"])
def test_delivery_to_other_loops_goes_on_beside_a_closed_one(manual_loop, thread_loop, gone_first):
    gone, other = ResultQueue(manual_loop), ResultQueue(thread_loop.loop)
    taken = thread_loop.start(take(other, 2))
    thread_loop.call(lambda: None)
    manual_loop.close()
    batch = [(gone, "x"), (other, "a"), (gone, "y"), (other, "b")]
    with pytest.raises(ConsumerGone) as caught:
        deliver(batch if gone_first else batch[1:])
    assert caught.value.queues == (gone,)
    assert taken.result(10) == ["a", "b"]


def test_an_item_that_cannot_be_handled_drops_no_other(thread_loop):
    queue = ResultQueue(thread_loop.loop)
    taken = thread_loop.start(take(queue, 2))
    thread_loop.call(lambda: None)
    with pytest.raises(TypeError):
        deliver([(queue, "a"), None, (queue, "b")])  # type: ignore[list-item]
    assert taken.result(10) == ["a", "b"]


def test_a_loop_that_cannot_be_woken_drops_nothing_of_another(manual_loop, thread_loop):
    broken, other = ResultQueue(manual_loop), ResultQueue(thread_loop.loop)

    def refuse(*_: Any) -> None:
        raise OSError("no wake-up")

    manual_loop.call_soon_threadsafe = refuse
    taken = thread_loop.start(take(other, 1))
    thread_loop.call(lambda: None)
    with pytest.raises(OSError, match="no wake-up"):
        deliver([(broken, "x"), (other, "a")])
    assert taken.result(10) == ["a"]


def test_a_queue_that_cannot_be_notified_drops_no_other(manual_loop):
    class Broken(ResultQueue[str]):
        def _notify(self) -> None:
            raise ValueError("no notification")

    broken, other = Broken(manual_loop), ResultQueue[str](manual_loop)
    getter = manual_loop.create_task(other.get())
    manual_loop.turn()
    deliver([(broken, "x"), (other, "a")])
    assert manual_loop.run_until_complete(getter) == "a"
    complaint = manual_loop.complaints.pop()
    assert str(complaint["exception"]) == "no notification"


def test_a_queue_is_made_and_read_on_its_own_loop(manual_loop, thread_loop):
    with pytest.raises(RuntimeError, match="no running event loop"):
        ResultQueue()

    async def make() -> ResultQueue[str]:
        return ResultQueue()

    queue = thread_loop.run(make())
    assert queue.loop is thread_loop.loop
    with pytest.raises(RuntimeError, match="on the event loop that it was made for"):
        manual_loop.run_until_complete(queue.get())


@settings(deadline=None)
@given(st.lists(st.sampled_from(["put", "batch", "get", "cancel", "turn", "half turn"]), max_size=30))
def test_nothing_is_lost_doubled_or_late_whatever_the_order_of_events(actions):
    loop = ManualLoop()
    queue = ResultQueue[int](loop)
    getters: list[asyncio.Task[int]] = []
    given_in = 0
    for action in actions:
        if action == "put":
            queue.put(given_in)
            given_in += 1
        elif action == "batch":
            deliver([(queue, given_in), (queue, given_in + 1)])
            given_in += 2
        elif action == "get":
            getters.append(loop.create_task(queue.get()))
        elif action == "cancel" and getters:
            getters[len(getters) // 2].cancel()
        else:
            loop.turn(3 if action == "turn" else 1)
    loop.turn(4)
    taken = [getter.result() for getter in getters if getter.done() and not getter.cancelled()]
    assert sorted([*taken, *queue.arrived]) == list(range(given_in))
    assert list(queue.arrived) == sorted(queue.arrived)
    waiting = [getter for getter in getters if not getter.done()]
    assert not (waiting and queue.arrived)
    for getter in waiting:
        getter.cancel()
    loop.turn()
    finish(loop)
