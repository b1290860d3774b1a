"""The delta mode: each result holds what is new, and nothing that may still be taken back."""

from __future__ import annotations

from typing import Any

import pytest
from course_model import safe
from engine_loops import ManualLoop, finish
from hypothesis import given, settings
from hypothesis import strategies as st
from servicing import CANCELLED, LENGTH, PROMPT, submit, take

from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    Finish,
    FinishReason,
    StopText,
    one_by_one,
    pieces,
    script,
    side_by_side,
    tokens,
)


@pytest.fixture
def serve_deltas(thread_loop) -> Any:
    """Serve one sequence of the given texts, one a step; what was received."""

    def serve(*texts: str, **asked: Any) -> Any:
        with GatedEngine(deltas=True) as engine:
            engine.prepare("r1", script(one_by_one(pieces(*texts))), open=True)
            generation = thread_loop.run(submit(engine, **asked))
            return thread_loop.run(take(generation))

    return serve


def test_each_result_holds_only_what_is_new(serve_deltas):
    received = serve_deltas("a", "b", "c")
    assert received.texts == ["a", "b", "c"]
    assert received.tokens == [(100,), (101,), (102,)]
    assert received.finishes == [None, None, LENGTH]


def test_text_that_may_become_an_excluded_stop_is_held_back(serve_deltas):
    received = serve_deltas("x", "A", "B", stop_texts=("AB",))
    assert received.texts == ["x", "", ""]
    assert received.tokens == [(100,), (), ()]
    assert received.finishes[-1] == Finish(FinishReason.STOP, StopText("AB"))


def test_held_text_comes_once_it_cannot_become_a_stop(serve_deltas):
    received = serve_deltas("x", "A", "C", "d", stop_texts=("AB",))
    assert received.texts == ["x", "", "AC", "d"]
    assert received.tokens == [(100,), (), (101, 102), (103,)]


def test_held_text_comes_with_another_end(serve_deltas):
    assert serve_deltas("x", "A", stop_texts=("AB",)).texts == ["x", "A"]
    assert serve_deltas("x", "A", "B", stop_texts=("AB",), max_tokens=2).texts == ["x", "A"]


def test_an_included_stop_holds_nothing_back(serve_deltas):
    assert serve_deltas("x", "A", "B", "n", stop_texts=("AB",), include_stop=True).texts == ["x", "A", "B"]


def test_a_stop_that_cannot_have_begun_holds_nothing_back(serve_deltas):
    assert serve_deltas("a", "b", "c", stop_texts=("QQQQQQ",)).texts == ["a", "b", "c"]


def test_an_abort_lets_go_of_what_is_held(thread_loop):
    with GatedEngine(deltas=True) as engine:
        gate = engine.prepare("r1", script(one_by_one(pieces("x", "A", "B"))))
        generation = thread_loop.run(submit(engine, stop_texts=("AB",)))
        gate.release(2)
        assert thread_loop.run(take(generation, 2)).texts == ["x", ""]
        thread_loop.call(generation.abort)
        received = thread_loop.run(take(generation))
        assert (received.texts, received.tokens, received.finishes) == (["A"], [(101,)], [CANCELLED])


def test_a_sequence_without_news_shows_nothing(thread_loop):
    with GatedEngine(deltas=True) as engine:
        engine.prepare("r1", script(side_by_side(tokens(1), tokens(3))), open=True)
        generation = thread_loop.run(submit(engine))
        seen = []
        for _ in range(3):
            thread_loop.run(take(generation, 1))
            seen.append([(len(state.tokens), state.finish) for state in generation.sequences])
        assert seen == [[(1, LENGTH), (1, None)], [(0, None), (1, None)], [(0, None), (1, LENGTH)]]
        assert generation.finished


def test_what_was_shown_stays_as_it_was(thread_loop):
    with GatedEngine(deltas=True) as engine:
        engine.prepare("r1", script(one_by_one(pieces("a", "b"))), open=True)
        generation = thread_loop.run(submit(engine))
        thread_loop.run(take(generation, 1))
        first = generation.sequences[0]
        thread_loop.run(take(generation, 1))
        assert (first.text, [token.id for token in first.tokens], first.text_ends) == ("a", [100], [1])
        assert generation.sequences[0].text_ends == [2]


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.text("aAB€", max_size=3), max_size=6),
    st.lists(st.text("AB€", max_size=3), max_size=2).map(tuple),
    st.booleans(),
)
def test_joined_deltas_are_the_outcome_and_end_where_a_stop_may_begin(texts, stops, include):
    played = script(one_by_one(pieces(*texts)))
    parameters = GenerationParameters(stop_texts=stops, include_stop=include)
    outcome = course(played, parameters).outcome[0]
    loop = ManualLoop()
    with GatedEngine(deltas=True) as engine:
        engine.prepare("r1", played, open=True)
        generation = loop.run_until_complete(submit(engine, prompt=PROMPT, stop_texts=stops, include_stop=include))
        received = loop.run_until_complete(take(generation))
    assert "".join(received.texts) == outcome.text
    assert tuple(number for ids in received.tokens for number in ids) == outcome.token_ids
    assert received.finishes == [None] * (len(received.texts) - 1) + [outcome.finish]
    if not include:
        shown = ""
        for number, text in enumerate(received.texts[:-1], start=1):
            shown += text
            produced = "".join(texts[:number])
            assert shown == produced[: safe(produced, stops)]
    finish(loop)
