"""How the engine takes an abort, at every point of a request."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
from servicing import CANCELLED, LENGTH, Received, serve, submit, take

from pytest_grpc_conformance.engines import producer
from pytest_grpc_conformance.engines.base import AbortRefused
from pytest_grpc_conformance.engines.gated import EngineMisuse, GatedEngine
from pytest_grpc_conformance.engines.result_queue import deliver
from pytest_grpc_conformance.engines.script import (
    AbortConduct,
    Ending,
    Script,
    one_by_one,
    pieces,
    script,
    side_by_side,
    tokens,
)

EMOJI = "🦀".encode()


def four(conduct: AbortConduct) -> Script:
    return script(one_by_one(tokens(4)), abort=conduct)


def test_an_abort_is_recorded_and_can_be_waited_for(engine, thread_loop):
    gate = engine.prepare("r1", four(AbortConduct.FINISH))
    generation = thread_loop.run(submit(engine))
    assert not gate.aborted().reached
    thread_loop.call(generation.abort)
    gate.aborted().wait()
    assert (engine.aborts, gate.abort_calls, gate.position.aborts) == (["r1"], 1, 1)


@pytest.mark.parametrize("taken", [0, 1, 2])
@pytest.mark.parametrize("released", [0, 2])
def test_finish_ends_with_a_cancelled_result_after_what_was_produced(engine, thread_loop, released, taken):
    gate = engine.prepare("r1", four(AbortConduct.FINISH))
    generation = thread_loop.run(submit(engine))
    gate.release(released)
    taken = min(taken, released)
    thread_loop.run(take(generation, taken))
    thread_loop.call(generation.abort)
    gate.settled().wait()
    rest = thread_loop.run(take(generation))
    assert [len(ids) for ids in rest.tokens] == [*range(taken + 1, released + 1), released]
    assert rest.finishes == [None] * (released - taken) + [CANCELLED]
    assert rest.error is None
    assert generation.finished
    assert (gate.produced, gate.taken) == (released, released)


def test_silent_ends_without_a_finish_after_what_was_produced(engine, thread_loop):
    gate = engine.prepare("r1", four(AbortConduct.SILENT))
    generation = thread_loop.run(submit(engine))
    gate.release(2)
    thread_loop.call(generation.abort)
    gate.settled().wait()
    assert thread_loop.run(take(generation)).finishes == [None, None]
    assert not generation.finished
    assert generation.sequences[0].finish is None


def test_refuse_raises_and_the_request_runs_on(engine, thread_loop):
    gate = engine.prepare("r1", four(AbortConduct.REFUSE))
    generation = thread_loop.run(submit(engine))
    for _ in range(2):
        with pytest.raises(AbortRefused, match="'r1'"):
            thread_loop.call(generation.abort)
    assert gate.aborted().reached
    assert engine.in_flight() == ("r1",)
    gate.release_all()
    assert thread_loop.run(take(generation)).finishes[-1] == LENGTH
    thread_loop.call(generation.abort)
    assert engine.aborts == ["r1"] * 3


def test_slow_runs_on_until_the_abort_is_released(engine, thread_loop):
    gate = engine.prepare("r1", four(AbortConduct.SLOW))
    generation = thread_loop.run(submit(engine))
    thread_loop.call(generation.abort)
    assert gate.aborted().reached
    gate.release(2)
    assert thread_loop.run(take(generation, 2)).finishes == [None, None]
    assert not gate.settled().reached
    gate.release_abort()
    gate.settled().wait()
    gate.release(2)
    rest = thread_loop.run(take(generation))
    assert (rest.finishes, len(rest.tokens[-1])) == ([CANCELLED], 2)


def test_an_abort_may_be_released_before_it_comes(engine, thread_loop):
    gate = engine.prepare("r1", four(AbortConduct.SLOW))
    gate.release_abort()
    generation = thread_loop.run(submit(engine))
    assert not gate.settled().reached
    thread_loop.call(generation.abort)
    assert thread_loop.run(take(generation)).finishes == [CANCELLED]


def test_only_a_slow_abort_can_be_released(engine):
    gate = engine.prepare("r1", four(AbortConduct.FINISH))
    with pytest.raises(EngineMisuse, match="the script of 'r1' does not take an abort slowly"):
        gate.release_abort()


@pytest.mark.parametrize("conduct", AbortConduct)
def test_an_abort_after_the_end_is_recorded_without_effect(engine, thread_loop, conduct):
    gate = engine.prepare("r1", four(conduct), open=True)
    generation = thread_loop.run(submit(engine))
    gate.settled().wait()
    thread_loop.call(generation.abort)
    assert thread_loop.run(take(generation)).finishes == [None, None, None, LENGTH]
    thread_loop.call(generation.abort)
    assert thread_loop.run(take(generation)) == Received()
    assert engine.aborts == ["r1", "r1"]


@pytest.mark.parametrize("conduct", [AbortConduct.FINISH, AbortConduct.SILENT])
def test_a_second_abort_changes_nothing(engine, thread_loop, conduct):
    gate = engine.prepare("r1", four(conduct))
    generation = thread_loop.run(submit(engine))
    gate.release()

    def twice() -> None:
        generation.abort()
        gate.release()
        generation.abort()

    thread_loop.call(twice)
    received = thread_loop.run(take(generation))
    assert len(received.tokens[-1]) == 1
    assert engine.aborts == ["r1", "r1"]
    assert gate.abort_calls == 2


def test_what_is_released_after_an_abort_is_not_produced(engine, thread_loop):
    gate = engine.prepare("r1", four(AbortConduct.FINISH))
    generation = thread_loop.run(submit(engine))
    gate.release()
    thread_loop.call(generation.abort)
    gate.release_all()
    assert [len(ids) for ids in thread_loop.run(take(generation)).tokens] == [1, 1]
    assert gate.produced == 1


def test_an_abort_shows_a_character_that_was_left_incomplete(engine, thread_loop):
    gate = engine.prepare("r1", script(one_by_one(pieces("a", EMOJI[:2], EMOJI[2:]))))
    generation = thread_loop.run(submit(engine))
    gate.release(2)
    thread_loop.run(take(generation, 2))
    thread_loop.call(generation.abort)
    assert thread_loop.run(take(generation)).texts == ["a\ufffd"]
    assert generation.sequences[0].text_ends == [1, 2]


def test_an_abort_cancels_only_the_sequences_that_are_open(engine, thread_loop):
    gate = engine.prepare("r1", script(side_by_side(tokens(1), tokens(3))))
    generation = thread_loop.run(submit(engine, num_sequences=3))
    gate.release()
    thread_loop.call(generation.abort)
    thread_loop.run(take(generation))
    assert [state.finish for state in generation.sequences] == [LENGTH, CANCELLED, CANCELLED]


@pytest.mark.parametrize("ending", [Ending.NOTHING, Ending.FAILURE])
def test_an_abort_comes_before_an_ending_that_is_still_held(engine, thread_loop, ending):
    gate = engine.prepare("r1", script(one_by_one(tokens(1)), ending=ending))
    generation = thread_loop.run(submit(engine))
    gate.release()
    thread_loop.call(generation.abort)
    received = thread_loop.run(take(generation))
    assert (received.finishes, received.error) == ([None, CANCELLED], None)


def test_an_abort_reaches_the_request_of_its_handle_only(engine, thread_loop):
    first, second = engine.prepare("r1", four(AbortConduct.FINISH)), engine.prepare("r1", four(AbortConduct.FINISH))
    generations = [thread_loop.run(submit(engine)) for _ in range(2)]
    thread_loop.call(generations[1].abort)
    second.settled().wait()
    assert not first.settled().reached
    first.release_all()
    assert thread_loop.run(take(generations[0])).finishes[-1] == LENGTH


@pytest.mark.parametrize("conduct", [AbortConduct.FINISH, AbortConduct.SILENT])
def test_an_abort_removes_a_request_from_the_queue(thread_loop, conduct):
    with GatedEngine(max_running=1) as engine:
        running = engine.prepare("r1", four(conduct))
        queued = engine.prepare("r2", four(conduct), open=True)
        last = engine.prepare("r3", four(conduct), open=True)
        first, second, third = (thread_loop.run(submit(engine, name)) for name in ("r1", "r2", "r3"))
        assert (engine.in_flight(), engine.queued()) == (("r1",), ("r2", "r3"))
        thread_loop.call(second.abort)
        queued.settled().wait()
        assert (engine.in_flight(), engine.queued()) == (("r1",), ("r3",))
        received = thread_loop.run(take(second))
        assert (received.finishes, queued.produced) == ([CANCELLED] if conduct is AbortConduct.FINISH else [], 0)
        thread_loop.call(first.abort)
        running.settled().wait()
        last.settled().wait()
        assert len(thread_loop.run(take(third)).texts) == 4


@pytest.mark.parametrize("conduct", [AbortConduct.REFUSE, AbortConduct.SLOW])
def test_a_request_stays_queued_whose_abort_is_not_carried_out(thread_loop, conduct):
    with GatedEngine(max_running=1) as engine:
        engine.prepare("r1", four(conduct))
        queued = engine.prepare("r2", four(conduct), open=True)
        for name in ("r1", "r2"):
            generation = thread_loop.run(submit(engine, name))
        try:
            thread_loop.call(generation.abort)
        except AbortRefused:
            assert conduct is AbortConduct.REFUSE
        assert engine.queued() == ("r2",)
        if conduct is AbortConduct.SLOW:
            queued.release_abort()
            queued.settled().wait()
            assert engine.queued() == ()


def test_an_aborted_id_may_be_used_again(engine, thread_loop):
    for _ in range(3):
        gate = engine.prepare("r1", four(AbortConduct.FINISH))
        generation = thread_loop.run(submit(engine))
        thread_loop.call(generation.abort)
        gate.settled().wait()
        assert engine.in_flight() == ()
    engine.prepare("r1", four(AbortConduct.FINISH), open=True)
    assert thread_loop.run(serve(engine)).finishes[-1] == LENGTH


@pytest.fixture
def held_worker(engine, thread_loop, monkeypatch) -> Iterator[threading.Event]:
    """The worker thread waits amid a delivery until the event is set, so everything comes before it looks again."""
    go_on, held = threading.Event(), threading.Event()

    def hold(batch: object) -> None:
        monkeypatch.setattr(producer, "deliver", deliver)
        held.set()
        go_on.wait(10)
        deliver(batch)  # type: ignore[arg-type]

    monkeypatch.setattr(producer, "deliver", hold)
    engine.prepare("r0", four(AbortConduct.FINISH), open=True)
    thread_loop.run(submit(engine, "r0"))
    assert held.wait(10)
    yield go_on
    go_on.set()


def test_what_is_released_before_an_abort_is_produced_though_the_engine_was_busy(engine, thread_loop, held_worker):
    gate = engine.prepare("r1", four(AbortConduct.FINISH))
    generation = thread_loop.run(submit(engine))
    gate.release()
    thread_loop.call(generation.abort)
    gate.release()
    held_worker.set()
    assert [len(ids) for ids in thread_loop.run(take(generation)).tokens] == [1, 1]


def test_the_first_that_ends_a_request_decides_how_it_ends(engine, thread_loop, held_worker):
    gate = engine.prepare("r1", four(AbortConduct.SLOW))
    generation = thread_loop.run(submit(engine))
    thread_loop.call(generation.abort)
    gate.release_abort()
    gate.release()
    gate.release_abort()
    thread_loop.call(generation.abort)
    engine.kill()
    held_worker.set()
    received = thread_loop.run(take(generation))
    assert (received.finishes, received.tokens, received.error) == ([CANCELLED], [()], None)


def test_an_abort_comes_too_late_once_everything_is_released(engine, thread_loop, held_worker):
    gate = engine.prepare("r1", four(AbortConduct.REFUSE), open=True)
    generation = thread_loop.run(submit(engine))
    thread_loop.call(generation.abort)
    assert gate.produced == 0
    held_worker.set()
    assert thread_loop.run(take(generation)).finishes[-1] == LENGTH
