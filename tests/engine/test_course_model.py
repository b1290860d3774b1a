"""The rules of stopping against a second, naive statement of them, on random scripts and requests."""

from __future__ import annotations

from itertools import pairwise

import course_model as model
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_grpc_conformance.engines.base import SequenceState
from pytest_grpc_conformance.engines.course import cancelled_course, course, safe_length, tokens_before_text
from pytest_grpc_conformance.engines.deltas import apply, only_new
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    Advance,
    Ending,
    Finish,
    FinishReason,
    Script,
    Step,
    Token,
)

EOS = frozenset({2, 3})
CANCELLED = Finish(FinishReason.CANCELLED)
ALPHABET = "ab€"


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Token, ...]:
    """Tokens over a small text whose bytes are cut anywhere, or over any bytes at all."""
    data = draw(
        st.text(ALPHABET, max_size=10).map(str.encode) | st.lists(st.sampled_from(b"a\xe2\x82\xac\xff")).map(bytes)
    )
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    bounds = [0, *cuts, len(data)]
    ids = st.sampled_from([2, 3, 7, 100, 101, 102, 103, 104, 105])
    return tuple(Token(draw(ids), data[begin:end]) for begin, end in pairwise(bounds))


PARAMETERS = st.builds(
    GenerationParameters,
    max_tokens=st.none() | st.integers(1, 8),
    min_tokens=st.none() | st.integers(0, 5),
    stop_texts=st.lists(st.text(ALPHABET + "\ufffd", max_size=4), max_size=3).map(tuple),
    stop_token_ids=st.lists(st.sampled_from([2, 7, 101]), max_size=2).map(tuple),
    include_stop=st.booleans(),
    ignore_eos=st.booleans(),
)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """One or two sequences, in steps of any sizes; a sequence may have a finish of its own."""
    steps: list[list[Advance]] = [[] for _ in range(draw(st.integers(0, 5)))]
    for index in range(draw(st.integers(1, 2))):
        rest = list(draw(sequences()))
        for number, step in enumerate(steps):
            size = len(rest) if number == len(steps) - 1 else draw(st.integers(0, 3))
            if size or draw(st.booleans()):
                step.append(Advance(index, tuple(rest[:size])))
            del rest[:size]
    return Script(tuple(Step(tuple(step)) for step in steps), draw(st.sampled_from(Ending)))


def played_by(script: Script, index: int, steps: int) -> list[Token]:
    return [
        token
        for step in script.steps[:steps]
        for advance in step.advances
        if advance.index == index
        for token in advance.tokens
    ]


def seen(state: SequenceState) -> model.Expected:
    return model.Expected([*state.tokens], state.text, [*state.text_ends], state.finish)


@settings(max_examples=400, deadline=None)
@given(scripts(), PARAMETERS)
def test_every_result_shows_what_the_model_says(script, parameters):
    played = course(script, parameters, EOS)
    states = [SequenceState(index) for index in range(len(played.outcome))]
    for number, result in enumerate(played.results):
        for delta in result.deltas:
            apply(delta, states[delta.index])
        closes = script.ending is Ending.LENGTH and number >= len(script.steps) - 1
        for state in states:
            tokens = played_by(script, state.index, number + 1)
            assert seen(state) == model.expect(tokens, parameters, EOS, model.LENGTH if closes else None)
        assert result.finished == all(state.finish is not None for state in states)
        assert not result.finished or result is played.results[-1]
    for state, outcome in zip(states, played.outcome, strict=True):
        assert (tuple(state.tokens), state.text, state.finish) == (outcome.tokens, outcome.text, outcome.finish)
    over = bool(played.results) and played.results[-1].finished
    assert played.ending is (None if over else script.ending)
    assert over or len(played.results) == len(script.steps)


@settings(max_examples=200, deadline=None)
@given(scripts(), PARAMETERS, st.integers(0, 6))
def test_a_cancelled_course_shows_what_the_model_says(script, parameters, steps):
    whole = course(script, parameters, EOS)
    cut = cancelled_course(script, parameters, EOS, steps=steps)
    if whole.ending is None and steps >= len(whole.results):
        assert cut == whole
        return
    assert cut.results[:-1] == whole.results[:steps]
    assert cut.results[-1].finished
    assert cut.ending is None
    for index, outcome in enumerate(cut.outcome):
        expected = model.expect(played_by(script, index, steps), parameters, EOS, CANCELLED)
        assert (list(outcome.tokens), outcome.text, outcome.finish) == (
            expected.tokens,
            expected.text,
            expected.finish,
        )


@settings(max_examples=400, deadline=None)
@given(scripts(), PARAMETERS, st.none() | st.integers(0, 5))
def test_deltas_joined_are_the_outcome_and_hold_back_no_more_than_they_must(script, parameters, aborted_after):
    if aborted_after is None:
        played = course(script, parameters, EOS)
    else:
        played = cancelled_course(script, parameters, EOS, steps=aborted_after)
    results = only_new(played.results, parameters)
    assert [result.finished for result in results] == [result.finished for result in played.results]
    whole = [SequenceState(index) for index in range(len(played.outcome))]
    joined = [SequenceState(index) for index in range(len(played.outcome))]
    for cumulative, new in zip(played.results, results, strict=True):
        for delta in cumulative.deltas:
            apply(delta, whole[delta.index])
        for delta in new.deltas:
            assert delta.keep_tokens is None
            assert delta.keep_text is None
            assert joined[delta.index].finish is None, "nothing comes after a finish"
            apply(delta, joined[delta.index])
        for full, shown in zip(whole, joined, strict=True):
            if full.finish is not None or parameters.include_stop:
                assert (shown.text, shown.tokens) == (full.text, full.tokens)
            else:
                stops = parameters.stop_texts
                assert shown.text == full.text[: model.safe(full.text, stops)]
                held = len(full.tokens) - len(shown.tokens)
                begins = [0, *full.text_ends][len(shown.tokens) : len(full.tokens)]
                assert held == 0 or begins[0] >= len(shown.text)
                assert not stops or all(begin < len(shown.text) for begin in [0, *full.text_ends][: len(shown.tokens)])
            assert shown.finish == full.finish


@given(st.text("ab", max_size=12), st.lists(st.text("ab", max_size=5), max_size=3))
def test_safe_length_is_where_the_first_possible_stop_begins(text, stops):
    assert safe_length(text, stops) == model.safe(text, stops)


@given(st.lists(st.integers(0, 6)).map(sorted), st.integers(-1, 8))
def test_tokens_before_text_counts_tokens_by_their_begin(ends, position):
    begins = [0, *ends][: len(ends)]
    assert tokens_before_text(ends, position) == sum(begin < position for begin in begins)


@pytest.mark.parametrize(
    ("text", "stops", "safe"),
    [
        ("", ("AB",), 0),
        ("A", ("AB",), 0),
        ("AAB", ("ABC",), 1),
        ("AA", ("AB",), 1),
        ("ABA", ("ABAC",), 0),
        ("ABABA", ("ABAC",), 2),
        ("abc", ("QQQQQQ",), 3),
        ("xy", ("yz", "xyz"), 0),
        ("xy", ("xyz", "yz"), 0),
        ("xAB", ("AB",), 3),
        ("A", ("A", ""), 1),
        ("ab", (), 2),
    ],
)
def test_safe_length(text, stops, safe):
    assert safe_length(text, stops) == safe


@pytest.mark.parametrize(
    ("ends", "position", "count"),
    [([], 0, 0), ([], 3, 0), ([1, 2, 3], 0, 0), ([1, 2, 3], 1, 1), ([1, 2, 3], 2, 2), ([1, 2, 3], 9, 3),
     ([3], 1, 1), ([0, 0, 2], 0, 0), ([0, 0, 2], 1, 3), ([1, 1, 3], 1, 1), ([1, 1, 3], 2, 3)],
)  # fmt: skip
def test_tokens_before_text(ends, position, count):
    assert tokens_before_text(ends, position) == count
