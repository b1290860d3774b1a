"""How the fake engine ends, with what is open in it, and what it withstands."""

from __future__ import annotations

import asyncio
import threading

import pytest
from engine_loops import ManualLoop
from servicing import LENGTH, Received, serve, submit, take, words

from pytest_grpc_conformance.engines import producer
from pytest_grpc_conformance.engines.base import EngineDown, EngineError, EngineFailure
from pytest_grpc_conformance.engines.gated import EngineDied, GatedEngine


def engine_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("gated-engine")]


def test_a_killed_engine_fails_what_is_open_and_refuses_the_rest(thread_loop):
    with GatedEngine(max_running=1) as engine:
        gate = engine.prepare("r1", words("a", "b"))
        queued = engine.prepare("r2", words("a"), open=True)
        later = engine.prepare("r3", words("a"))
        generations = [thread_loop.run(submit(engine, name)) for name in ("r1", "r2")]
        gate.release()
        assert engine.healthy
        engine.kill("no power")
        assert not engine.healthy
        engine.idle().wait()
        for generation, texts in zip(generations, (["a"], []), strict=True):
            received = thread_loop.run(take(generation))
            assert received.texts == texts
            assert isinstance(received.error, EngineDown)
            assert isinstance(received.error, EngineFailure)
            assert (type(received.error), str(received.error)) == (EngineDied, "no power")
            assert thread_loop.run(take(generation)) == Received()
        with pytest.raises(EngineDown, match=r"^no power$"):
            thread_loop.run(submit(engine, "r3"))
        assert engine.submissions[-1].refused
        assert not later.submitted().reached
        assert queued.settled().reached


def test_a_request_that_has_ended_survives_the_death_of_the_engine(engine, thread_loop):
    gate = engine.prepare("r1", words("a"))
    generation = thread_loop.run(submit(engine))
    gate.release_all()
    engine.kill()
    engine.kill("again")
    assert thread_loop.run(take(generation)) == Received(["a"], [(100,)], [LENGTH])
    with pytest.raises(EngineDown, match=r"^engine died$"):
        thread_loop.run(submit(engine))


def test_health_may_be_set(engine, thread_loop):
    engine.healthy = False
    engine.prepare("r1", words("a"), open=True)
    assert thread_loop.run(serve(engine)).texts == ["a"]


def test_close_ends_what_is_open_and_joins_the_thread(thread_loop):
    engine = GatedEngine()
    gate = engine.prepare("r1", words("a", "b"))
    assert engine_threads() == []
    serving = thread_loop.start(serve(engine))
    gate.submitted().wait()
    assert engine_threads() == ["gated-engine fake-model"]
    gate.release()
    for _ in range(2):
        engine.close()
        assert engine_threads() == []
    received = serving.result(10)
    assert (received.texts, type(received.error), str(received.error)) == (["a"], EngineDied, "engine closed")
    assert not engine.healthy
    with pytest.raises(EngineDown, match="engine closed"):
        thread_loop.run(submit(engine))
    gate.release_all()
    thread_loop.call(gate.generation.abort)
    assert engine_threads() == []


def test_close_wakes_whoever_waits(thread_loop):
    engine = GatedEngine()
    gate = engine.prepare("r1", words("a"))
    thread_loop.run(submit(engine))
    seen: list[type[BaseException]] = []

    async def attend() -> None:
        await gate.delivered(1)

    def wait() -> None:
        try:
            engine.submitted(5).wait()
        except EngineError as error:
            seen.append(type(error))

    awaiting, blocked = thread_loop.start(attend()), threading.Thread(target=wait)
    blocked.start()
    while len(engine._board.waiting) < 2:
        thread_loop.call(lambda: None)
    settled = threading.Thread(target=gate.settled().wait)
    settled.start()
    engine.close()
    with pytest.raises(EngineDown, match=r"engine closed while waiting for delivered\(1\) of 'r1': steps 1, rel"):
        awaiting.result(10)
    for thread in (blocked, settled):
        thread.join(10)
    assert seen == [EngineDown]
    assert gate.settled().reached


def test_an_engine_that_was_never_used_starts_no_thread():
    with GatedEngine() as engine:
        engine.prepare("r1", words("a"), open=True)
        assert engine_threads() == []


@pytest.mark.asyncio
async def test_it_may_be_closed_on_the_loop_that_it_serves():
    asyncio.get_running_loop().set_debug(True)
    with GatedEngine() as engine:
        engine.prepare("r1", words("a"))
        serving = asyncio.create_task(serve(engine))
        await engine.submitted()
    assert isinstance((await serving).error, EngineDied)


@pytest.mark.parametrize("released", [1, 2], ids=["amid-the-request", "at-its-end"])
def test_a_closed_loop_of_one_consumer_stops_no_other(engine, thread_loop, released):
    gone = ManualLoop()
    lost, other = engine.prepare("r1", words("a", "b")), engine.prepare("r2", words("a", "b"))
    gone.run_until_complete(submit(engine, "r1"))
    generation = thread_loop.run(submit(engine, "r2"))
    gone.close()
    lost.release(released)
    other.release_all()
    lost.settled().wait()
    assert thread_loop.run(take(generation)).texts == ["a", "ab"]
    assert engine.in_flight() == ()
    engine.prepare("r3", words("c"), open=True)
    assert thread_loop.run(serve(engine, "r3")).texts == ["c"]


def test_a_fault_inside_the_engine_fails_one_request_and_is_reported(engine, thread_loop, monkeypatch):
    broken, other = engine.prepare("r1", words("a")), engine.prepare("r2", words("a"))
    generations = [thread_loop.run(submit(engine, name)) for name in ("r1", "r2")]

    def fail(self: producer.Plan, steps: int) -> None:
        raise ValueError("bad plan")

    monkeypatch.setattr(producer.Plan, "cancelled", fail)
    thread_loop.call(generations[0].abort)
    broken.settled().wait()
    other.release_all()
    assert thread_loop.run(take(generations[1])).texts == ["a"]
    error = thread_loop.run(take(generations[0])).error
    assert (type(error), str(error)) == (EngineFailure, "the fake engine failed")
    assert engine.misuses == ["the fake engine failed on request 'r1': ValueError('bad plan')"]


def test_many_consumers_on_several_loops_get_exactly_theirs(thread_loops):
    with GatedEngine(max_running=7) as engine:
        loops = [thread_loops() for _ in range(3)]
        gates = [engine.prepare(f"r{number}", words(*f"{number:05}")) for number in range(60)]
        serving = [loops[number % 3].start(serve(engine, f"r{number}")) for number in range(60)]
        engine.submitted(60).wait()
        for _ in range(5):
            for gate in reversed(gates):
                gate.release()
        for number, served in enumerate(serving):
            assert served.result(10).texts[-1] == f"{number:05}"
        assert engine.misuses == []
