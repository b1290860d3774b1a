"""What a gate holds, what it counts, and what can be waited for."""

from __future__ import annotations

import re
import threading

import pytest
from servicing import serve, submit, take

from pytest_grpc_conformance.engines.base import InvalidRequest
from pytest_grpc_conformance.engines.gated import DeadlineMissed, EngineMisuse, GatedEngine, GatePosition
from pytest_grpc_conformance.engines.script import (
    AbortConduct,
    Advance,
    Ending,
    Finish,
    FinishReason,
    Refusal,
    Step,
    Token,
    in_steps,
    one_by_one,
    script,
    tokens,
)

THREE = script(one_by_one(tokens(3)))


def test_a_step_is_held_until_it_is_released(engine, thread_loop):
    gate = engine.prepare("r1", THREE)
    serving = thread_loop.start(serve(engine))
    gate.submitted().wait()
    thread_loop.call(lambda: None)
    assert gate.position == GatePosition(steps=3, released=0, produced=0, taken=0, aborts=0)
    gate.release()
    gate.delivered(1).wait()
    assert gate.position == GatePosition(steps=3, released=1, produced=1, taken=1, aborts=0)
    assert not serving.done()
    gate.release(2)
    assert serving.result(10).texts == [" w0", " w0 w1", " w0 w1 w2"]
    assert gate.position == GatePosition(steps=3, released=3, produced=3, taken=3, aborts=0)


def test_each_released_step_is_a_result_of_its_own(engine, thread_loop):
    gate = engine.prepare("r1", script(in_steps(tokens(6), [1, 0, 2, 3])))
    gate.release_all()
    received = thread_loop.run(serve(engine))
    assert [len(ids) for ids in received.tokens] == [1, 1, 3, 6]


def test_steps_that_are_released_at_once_wake_the_loop_once(engine, thread_loop):
    gate = engine.prepare("r1", THREE)
    serving = thread_loop.start(serve(engine))
    gate.submitted().wait()
    thread_loop.call(lambda: None)
    before = thread_loop.loop.wake_ups
    gate.release(3)
    gate.settled().wait()
    assert len(serving.result(10).texts) == 3
    assert thread_loop.loop.wake_ups == before + 1


def test_what_is_released_before_the_submission_counts_down_when_it_comes(engine, thread_loop):
    gate = engine.prepare("r1", THREE)
    gate.release(2)
    assert gate.position == GatePosition(steps=3, released=2, produced=0, taken=0, aborts=0)
    serving = thread_loop.start(serve(engine))
    gate.delivered(2).wait()
    assert not serving.done()
    gate.release()
    assert len(serving.result(10).texts) == 3


def test_an_open_gate_holds_nothing(engine, thread_loop):
    gate = engine.prepare("r1", THREE, open=True)
    assert gate.released == gate.steps
    assert len(thread_loop.run(serve(engine)).texts) == 3


def test_the_handle_changes_only_when_a_result_is_taken(engine, thread_loop):
    gate = engine.prepare("r1", THREE, open=True)
    generation = thread_loop.run(submit(engine))
    gate.settled().wait()
    assert gate.produced == 3
    assert (generation.sequences[0].tokens, generation.sequences[0].text) == ([], "")
    assert not generation.finished
    thread_loop.run(take(generation, 1))
    assert len(generation.sequences[0].tokens) == 1
    thread_loop.run(take(generation))
    assert generation.finished
    assert gate.generation is generation


STEPS = {
    "steps": (THREE, 3),
    "no-step": (script(), 1),
    "only-the-end": (script(ending=Ending.NOTHING), 1),
    "lost": (THREE.but(ending=Ending.NOTHING), 4),
    "failure": (THREE.but(ending=Ending.FAILURE), 4),
}


@pytest.mark.parametrize(("played", "steps"), STEPS.values(), ids=STEPS.keys())
def test_an_ending_that_no_step_brings_is_a_step_of_its_own(engine, thread_loop, played, steps):
    gate = engine.prepare("r1", played)
    assert gate.steps == steps
    serving = thread_loop.start(serve(engine))
    gate.release(steps - 1)
    gate.delivered(steps - 1).wait()
    gate.drained().wait()
    assert not serving.done()
    gate.release()
    gate.delivered(steps).wait()
    serving.result(10)
    assert gate.position == GatePosition(steps, steps, steps, steps, 0)


def test_releasing_more_than_there_is_says_so(engine):
    gate = engine.prepare("r1", THREE)
    gate.release(2)
    with pytest.raises(EngineMisuse, match=r"^released 5, but the script of 'r1' has 3 steps$"):
        gate.release(3)
    assert gate.released == 2
    one = engine.prepare(None, script())
    with pytest.raises(EngineMisuse, match=r"^released 2, but the script of the next request has 1 step$"):
        one.release(2)
    with pytest.raises(EngineMisuse, match="what is released stays released"):
        gate.release(-1)
    with pytest.raises(EngineMisuse, match=r"delivered\(4\) of 'r1', whose script has 3 steps"):
        gate.delivered(4)
    gate.release(0)
    gate.release(1)


def test_steps_beyond_a_stop_may_be_released_without_effect(engine, thread_loop):
    gate = engine.prepare("r1", THREE)
    gate.release(1)
    received = thread_loop.run(serve(engine, max_tokens=1))
    assert len(received.texts) == 1
    gate.settled().wait()
    gate.release(2)
    gate.drained().wait()
    assert gate.position == GatePosition(steps=3, released=3, produced=1, taken=1, aborts=0)


def test_milestones_follow_a_request(engine, thread_loop):
    gate = engine.prepare("r1", THREE)
    names = ["submitted", "delivered_1", "drained", "settled", "aborted"]

    def reached() -> list[str]:
        marks = [gate.submitted(), gate.delivered(1), gate.drained(), gate.settled(), gate.aborted()]
        return [name for name, mark in zip(names, marks, strict=True) if mark.reached]

    assert reached() == ["drained"]
    generation = thread_loop.run(submit(engine))
    assert reached() == ["submitted", "drained"]
    gate.release(2)
    assert "drained" not in reached()
    thread_loop.run(take(generation, 1))
    assert reached() == ["submitted", "delivered_1"]
    thread_loop.run(take(generation, 1))
    assert reached() == ["submitted", "delivered_1", "drained"]
    gate.release()
    gate.settled().wait()
    assert reached() == ["submitted", "delivered_1", "settled"]
    thread_loop.run(take(generation, 1))
    assert reached() == ["submitted", "delivered_1", "drained", "settled"]
    thread_loop.call(generation.abort)
    assert reached() == ["submitted", "delivered_1", "drained", "settled", "aborted"]


NOTICED = {
    "submitted": (lambda gate, _: gate.submitted(), "submit"),
    "submitted-to-the-engine": (lambda _, engine: engine.submitted(), "submit"),
    "delivered": (lambda gate, _: gate.delivered(1), "take"),
    "drained": (lambda gate, _: gate.drained(), "take"),
    "delivered-the-end": (lambda gate, _: gate.delivered(2), "take the end"),
    "aborted": (lambda gate, _: gate.aborted(), "slow abort"),
    "settled": (lambda gate, _: gate.settled(), "abort"),
    "idle": (lambda _, engine: engine.idle(), "abort"),
    "refused": (lambda gate, _: gate.settled(), "refuse"),
}


@pytest.mark.parametrize(("milestone", "event"), NOTICED.values(), ids=NOTICED.keys())
def test_who_waits_is_woken_by_the_event_itself(engine, thread_loop, milestone, event):
    refusal = Refusal() if event == "refuse" else None
    conduct = AbortConduct.SLOW if event == "slow abort" else AbortConduct.FINISH
    gate = engine.prepare("r1", script(one_by_one(tokens(1)), ending=Ending.NOTHING, refusal=refusal, abort=conduct))
    if event not in ("submit", "refuse"):
        generation = thread_loop.run(submit(engine))
        gate.release(2 if event == "take the end" else 1)
        if event == "take the end":
            thread_loop.run(take(generation, 1))
    waited_for = milestone(gate, engine)
    waiting = threading.Thread(target=lambda: waited_for.wait(timeout=3600), daemon=True)
    waiting.start()
    while not engine._board.waiting:
        thread_loop.call(lambda: None)
    if event == "submit":
        thread_loop.run(submit(engine))
    elif event == "refuse":
        with pytest.raises(InvalidRequest):
            thread_loop.run(submit(engine))
    elif event.endswith("abort"):
        thread_loop.call(generation.abort)
    else:
        thread_loop.run(take(generation, 1))
    waiting.join(10)
    assert not waiting.is_alive()


@pytest.mark.asyncio
async def test_milestones_are_awaited_beside_the_servicer(engine):
    import asyncio

    gate = engine.prepare("r1", THREE)
    serving = asyncio.create_task(serve(engine))
    await gate.submitted()
    gate.release(2)
    await gate.delivered(2).within(5)
    await gate.drained()
    gate.release()
    await gate.settled()
    await engine.idle()
    assert len((await serving).texts) == 3


def test_a_missed_deadline_says_where_the_gate_stood(engine, thread_loop):
    gate = engine.prepare("r1", script(one_by_one(tokens(5))))
    generation = thread_loop.run(submit(engine))
    gate.release(2)
    thread_loop.run(take(generation, 1))
    with pytest.raises(DeadlineMissed) as caught:
        gate.delivered(2).wait(timeout=0.01)
    message = "waited 0.01 s for delivered(2) of 'r1': steps 5, released 2, produced 2, taken 1, aborts 0"
    assert str(caught.value) == message


def test_the_deadline_of_the_engine_is_the_deadline_of_its_milestones():
    with GatedEngine(timeout=0.25) as engine:
        gate = engine.prepare("r1", THREE)
        assert gate.settled().timeout == engine.idle().timeout == 0.25
        with pytest.raises(DeadlineMissed, match=r"waited 0\.25 s for submitted\(\) of 'r1'"):
            gate.submitted().wait()
        with pytest.raises(DeadlineMissed) as caught:
            engine.submitted(2).wait(timeout=0)
    assert str(caught.value) == (
        "waited 0 s for submitted(2) of the engine:\n"
        "'r1': steps 3, released 0, produced 0, taken 0, aborts 0, not submitted"
    )


def test_any_thread_may_release(engine, thread_loop):
    gate = engine.prepare("r1", script(one_by_one(tokens(40))))
    serving = thread_loop.start(serve(engine))
    threads = [threading.Thread(target=lambda: [gate.release() for _ in range(10)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(serving.result(10).texts) == 40


def finishing(index: int, *ids: int) -> Advance:
    return Advance(index, tuple(Token(number) for number in ids), Finish(FinishReason.LENGTH))


MISUSED = {
    "no-script": ("r1", "a script is needed, not 'r1'"),
    "twice-in-a-step": (script(Step((Advance(0), Advance(0)))), "step 0 of the script: sequence 0 is advanced twice"),
    "after-its-finish": (
        script(Step((finishing(0, 5),)), Step((Advance(0),))),
        "step 1 of the script: sequence 0 is advanced after its finish",
    ),
    "negative-index": (script(Step((Advance(-1),))), "step 0 of the script: sequence -1 has a negative index"),
    "unknown-refusal": (
        script(refusal=Refusal("odd")),
        "unknown kind of refusal 'odd'; known: invalid, full, down",
    ),
}


@pytest.mark.parametrize(("played", "message"), MISUSED.values(), ids=MISUSED.keys())
def test_a_script_that_cannot_be_played_is_refused_when_it_is_prepared(engine, played, message):
    with pytest.raises(EngineMisuse, match=f"^{re.escape(message)}$"):
        engine.prepare("r1", played)
    assert engine.positions() == "no requests"


def test_a_position_is_a_line_to_read(engine):
    assert str(GatePosition(5, 2, 2, 1, 0)) == "steps 5, released 2, produced 2, taken 1, aborts 0"
    assert str(engine.prepare(None, THREE)) == (
        "the next request: steps 3, released 0, produced 0, taken 0, aborts 0, not submitted"
    )
