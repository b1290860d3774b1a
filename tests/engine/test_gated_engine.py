"""The fake engine as its servicer and its test see it: scripts, submissions, results, and what it works on."""

from __future__ import annotations

import asyncio
import threading

import pytest
from servicing import LENGTH, PROMPT, Received, serve, submit, submit_now, take, words

from pytest_grpc_conformance.engines.base import (
    Engine,
    EngineDown,
    EngineError,
    EngineFailure,
    EngineFull,
    Generation,
    InvalidRequest,
)
from pytest_grpc_conformance.engines.gated import EngineMisuse, GatedEngine, Submission
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    Ending,
    Prompt,
    Refusal,
    Script,
    Token,
    scored,
    script,
    tokens,
)


def test_it_has_the_shape_of_an_engine(engine, thread_loop):
    shaped: Engine = engine
    engine.prepare("r1", script(cached_tokens=7))
    generation: Generation = thread_loop.run(submit(engine, max_tokens=5))
    assert (shaped.model, shaped.max_context_tokens, shaped.eos_token_ids) == ("fake-model", 16384, {2})
    assert shaped.vocabulary_size > 10_000 * 4097 + 5
    assert (generation.request_id, generation.prompt_token_ids, generation.cached_tokens) == ("r1", (1, 2, 3), 7)
    assert generation.parameters == GenerationParameters(max_tokens=5)
    assert generation.__aiter__() is generation
    assert repr(generation) == "<GatedGeneration 'r1': steps 1, released 0, produced 0, taken 0, aborts 0>"


def test_results_are_cumulative_and_a_stop_is_trimmed_in_the_last(engine, thread_loop):
    engine.prepare("r1", words("a", "b", "A", "B", "never"), open=True)
    received = thread_loop.run(serve(engine, stop_texts=("AB",)))
    assert received.texts == ["a", "ab", "abA", "ab"]
    assert received.tokens == [(100,), (100, 101), (100, 101, 102), (100, 101)]


def test_a_failure_is_raised_once_and_then_iteration_stops(engine, thread_loop):
    engine.prepare("r1", words("a").but(ending=Ending.FAILURE, failure="it broke"), open=True)
    generation = thread_loop.run(submit(engine))
    received = thread_loop.run(take(generation))
    assert received.texts == ["a"]
    assert (type(received.error), str(received.error)) == (EngineFailure, "it broke")
    assert thread_loop.run(take(generation)) == Received()
    assert not generation.finished


def test_a_lost_request_ends_without_a_finish(engine, thread_loop):
    engine.prepare("r1", words("a").but(ending=Ending.NOTHING), open=True)
    received = thread_loop.run(serve(engine))
    assert (received.texts, received.finishes, received.error) == (["a"], [None], None)


def test_a_finished_request_stops_however_often_it_is_asked(engine, thread_loop):
    engine.prepare("r1", words("a"), open=True)
    generation = thread_loop.run(submit(engine))
    assert thread_loop.run(take(generation)).finishes == [LENGTH]
    assert generation.finished
    assert [thread_loop.run(take(generation)) for _ in range(2)] == [Received(), Received()]


def test_a_consumer_that_is_cancelled_loses_no_result(engine, thread_loop):
    gate = engine.prepare("r1", words("a", "b"))
    generation = thread_loop.run(submit(engine))

    async def give_up() -> None:
        task = asyncio.ensure_future(anext(generation))
        await asyncio.wait([task], timeout=0)
        task.cancel()
        await asyncio.wait([task])

    thread_loop.run(give_up())
    gate.release_all()
    assert thread_loop.run(take(generation)).texts == ["a", "ab"]


# Which script a submission gets.


def test_scripts_are_matched_by_request_id(engine, thread_loop):
    for name in ("r1", "r2", "r12"):
        engine.prepare(name, words(name), open=True)
    assert [thread_loop.run(serve(engine, name)).texts for name in ("r12", "r1", "r2")] == [["r12"], ["r1"], ["r2"]]


def test_scripts_for_one_id_are_used_in_order(engine, thread_loop):
    gates = [engine.prepare("r1", words(text), open=True) for text in "abc"]
    assert [thread_loop.run(serve(engine)).texts for _ in gates] == [["a"], ["b"], ["c"]]
    assert [gate.taken for gate in gates] == [1, 1, 1]


def test_a_script_for_any_id_serves_the_next_one_that_has_none(engine, thread_loop):
    gate = engine.prepare(None, words("any"), open=True)
    engine.prepare(None, words("other"), open=True)
    engine.prepare("r1", words("own"), open=True)
    assert gate.request_id is None
    assert [thread_loop.run(serve(engine, name)).texts for name in ("r1", "r2", "r3")] == [["own"], ["any"], ["other"]]
    assert gate.request_id == "r2"


@pytest.mark.parametrize(("records", "kept"), [(None, ["r1", "r2", "r3"]), (2, ["r2", "r3"]), (0, [])])
def test_as_many_submissions_and_aborts_are_kept_as_asked_for_and_all_are_counted(thread_loop, records, kept):
    with GatedEngine(default_script=lambda _: words("a"), records=records) as engine:
        for name in ("r1", "r2", "r3"):
            thread_loop.run(submit(engine, name)).abort()
        assert [submission.request_id for submission in engine.submissions] == kept
        assert engine.aborts == kept
        assert engine.submitted(3).reached
        assert not engine.submitted(4).reached


def test_a_submission_without_a_script_is_a_fault_of_the_test(engine, thread_loop):
    engine.prepare("r1", words("a"))
    with pytest.raises(EngineMisuse, match="no script was prepared for request 'r2'") as caught:
        thread_loop.run(submit(engine, "r2"))
    assert not isinstance(caught.value, EngineError)
    assert isinstance(caught.value, RuntimeError)
    assert engine.misuses == ["no script was prepared for request 'r2'"]
    assert [submission.refused for submission in engine.submissions] == [True]
    assert engine.in_flight() == ()


def test_the_default_script_serves_the_rest_with_open_gates(thread_loop):
    asked: list[Submission] = []

    def default(submission: Submission) -> Script:
        asked.append(submission)
        return words(submission.request_id)

    with GatedEngine(default_script=default) as engine:
        engine.prepare("r1", words("own"), open=True)
        assert thread_loop.run(serve(engine, "r1")).texts == ["own"]
        assert thread_loop.run(serve(engine, "r2", seed=4)).texts == ["r2"]
        assert asked == [Submission("r2", PROMPT, GenerationParameters(seed=4))]
        engine.idle().wait()
        assert "r2" not in engine.positions()


@pytest.mark.parametrize("default", [lambda _: 1 / 0, lambda _: None], ids=["raises", "gives-none"])
def test_a_default_script_that_fails_is_a_fault_of_the_test(thread_loop, default):
    with GatedEngine(default_script=default) as engine:
        with pytest.raises(EngineMisuse, match="default_script failed for request 'r1'"):
            thread_loop.run(submit(engine))
        assert len(engine.misuses) == 1


def test_one_script_serves_requests_with_different_parameters(engine, thread_loop):
    shared = words("a", "b", "c")
    for cap in (1, 2, 1, None):
        engine.prepare("r1", shared, open=True)
        assert len(thread_loop.run(serve(engine, max_tokens=cap)).texts) == (cap or 3)


def test_many_scripts_do_not_get_mixed_up(engine, thread_loop):
    for number in range(200):
        engine.prepare("r1", words(str(number)), open=True)
        assert thread_loop.run(serve(engine)).texts == [str(number)]


# What a submission asks for.


def test_submissions_are_recorded_as_they_came(engine, thread_loop):
    engine.prepare("r1", script())
    engine.prepare("r2", script(refusal=Refusal()))
    thread_loop.run(submit(engine, "r1", Prompt((5,), "five"), max_tokens=0, stop_texts=("x",)))
    with pytest.raises(InvalidRequest):
        thread_loop.run(submit(engine, "r2"))
    assert engine.submissions == [
        Submission("r1", Prompt((5,), "five"), GenerationParameters(max_tokens=0, stop_texts=("x",))),
        Submission("r2", PROMPT, GenerationParameters(), refused=True),
    ]


def test_submissions_can_be_waited_for(engine, thread_loop):
    assert not engine.submitted().reached
    for number in range(2):
        engine.prepare("r1", script(refusal=Refusal("full") if number else None), open=True)
        milestone = engine.submitted(number + 1)
        waiting = threading.Thread(target=milestone.wait)
        waiting.start()
        with pytest.raises(EngineFull) if number else pytest.MonkeyPatch.context():
            thread_loop.run(submit(engine))
        waiting.join(10)
        assert milestone.reached
    assert not engine.submitted(3).reached


@pytest.mark.parametrize(
    ("kind", "error"), [("invalid", InvalidRequest), ("full", EngineFull), ("down", EngineDown)], ids=str
)
def test_a_script_refuses_its_submission(engine, thread_loop, kind, error):
    gate = engine.prepare("r1", script(refusal=Refusal(kind, "because")))
    with pytest.raises(error, match=r"^because$"):
        thread_loop.run(submit(engine))
    assert gate.submitted().reached
    assert gate.settled().reached
    assert gate.generation is None
    assert engine.in_flight() == ()
    assert engine.idle().reached
    assert engine.misuses == []
    engine.prepare("r1", words("a"), open=True)
    assert thread_loop.run(serve(engine)).texts == ["a"]


def test_a_prompt_must_fit_the_context_window(thread_loop):
    with GatedEngine(max_context_tokens=4) as engine:
        engine.prepare("r1", words("a"), open=True)
        with pytest.raises(InvalidRequest, match="the prompt has 5 tokens, but the context window holds 4"):
            thread_loop.run(submit(engine, prompt=Prompt((1,) * 5)))
        with pytest.raises(InvalidRequest):
            thread_loop.run(submit(engine, prompt=Prompt((), "hello")))
        assert [submission.refused for submission in engine.submissions] == [True, True]
        generation = thread_loop.run(submit(engine, prompt=Prompt((1,) * 4)))
        assert thread_loop.run(take(generation)).texts == ["a"]


def test_a_text_is_tokenized_by_its_bytes(engine, thread_loop):
    assert engine.tokenize("a€\0") == (100, 229, 133, 175, 3)
    engine.prepare("r1", words("a"))
    assert thread_loop.run(submit(engine, prompt=Prompt((), "ab"))).prompt_token_ids == (100, 101)
    engine.prepare("r1", words("a"))
    assert thread_loop.run(submit(engine, prompt=Prompt((7,), "ab"))).prompt_token_ids == (7,)


@pytest.mark.parametrize(("asked", "candidates"), [(None, []), (0, [0, 0, 0]), (2, [0, 2, 2])])
def test_prompt_scores_are_given_when_asked_for(engine, thread_loop, asked, candidates):
    engine.prepare("r1", script(prompt=(Token(1), *scored(tokens(2)))))
    generation = thread_loop.run(submit(engine, prompt_logprobs=asked))
    assert [len(token.candidates) for token in generation.prompt_tokens] == candidates


def test_submission_needs_a_running_loop(engine):
    with pytest.raises(RuntimeError, match="no running event loop"):
        submit_now(engine)


# What the engine works on.


def test_requests_in_flight_are_those_that_are_not_settled(engine, thread_loop):
    gates = [engine.prepare(name, words("a", "b")) for name in ("r1", "r2", "r1")]
    generations = [thread_loop.run(submit(engine, name)) for name in ("r1", "r2", "r1")]
    assert engine.in_flight() == ("r1", "r2", "r1")
    assert not engine.idle().reached
    gates[1].release_all()
    gates[1].settled().wait()
    assert engine.in_flight() == ("r1", "r1")
    for gate in gates:
        gate.release_all()
    engine.idle().wait()
    assert engine.in_flight() == ()
    for generation in generations:
        assert thread_loop.run(take(generation)).texts == ["a", "ab"]


def test_only_max_running_requests_are_worked_on(thread_loop):
    with GatedEngine(max_running=2) as engine:
        names = ("r1", "r2", "r3", "r4")
        gates = {name: engine.prepare(name, words("a")) for name in names}
        generations = {name: thread_loop.run(submit(engine, name)) for name in names}
        assert (engine.in_flight(), engine.queued()) == (("r1", "r2"), ("r3", "r4"))
        gates["r4"].release_all()
        thread_loop.call(lambda: None)
        assert gates["r4"].produced == 0
        assert not engine.idle().reached
        gates["r2"].release_all()
        gates["r2"].settled().wait()
        assert (engine.in_flight(), engine.queued()) == (("r1", "r3"), ("r4",))
        gates["r3"].release_all()
        gates["r4"].settled().wait()  # admitted, and released before
        assert (engine.in_flight(), engine.queued()) == (("r1",), ())
        gates["r1"].release_all()
        engine.idle().wait()
        for generation in generations.values():
            assert thread_loop.run(take(generation)).finishes == [LENGTH]


def test_positions_tell_where_every_gate_stands(thread_loop):
    with GatedEngine(default_script=lambda _: words("a"), max_running=1) as engine:
        assert engine.positions() == "no requests"
        gate = engine.prepare("r1", words("a", "b", "c"))
        engine.prepare("r9", words("a"))
        gate.release(2)
        generation = thread_loop.run(submit(engine))
        thread_loop.run(submit(engine, "r2"))
        thread_loop.run(take(generation, 1))
        assert engine.positions().splitlines() == [
            "'r1': steps 3, released 2, produced 2, taken 1, aborts 0",
            "'r9': steps 1, released 0, produced 0, taken 0, aborts 0, not submitted",
            "'r2': steps 1, released 1, produced 0, taken 0, aborts 0",
        ]
        gate.release_all()
        gate.settled().wait()
        assert engine.positions().splitlines()[0].endswith("taken 1, aborts 0, settled")
