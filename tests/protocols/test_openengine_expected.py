"""The expected messages by example, and the servicer against them on random scripts."""

from __future__ import annotations

import math

import pytest
from google.protobuf import text_format
from hypothesis import given, settings
from hypothesis import strategies as st
from openengine_serving import collect
from own_loop import run_on_own_loop
from scripted_engine import ScriptedEngine

from pytest_grpc_conformance.engines.course import Course, course
from pytest_grpc_conformance.engines.script import (
    Advance,
    Candidate,
    Ending,
    Finish,
    FinishReason,
    Prompt,
    Script,
    Step,
    StopText,
    StopToken,
    Token,
    in_steps,
    one_by_one,
    pieces,
    scored,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.protocols.base import ErrorEvent, FinishEvent, Request, TokensEvent
from pytest_grpc_conformance.protocols.openengine import OPENENGINE

EOS = frozenset({2})
PROMPT = Prompt((1, 2, 3))


def play(played: Script, request: Request) -> tuple[Course, list[str]]:
    """The course, and the expected messages in short form without the request id."""
    cut = course(played, request.parameters(), EOS)
    messages = OPENENGINE.expected_messages(request, PROMPT, played, cut)
    assert {message.request_id for message in messages} == {request.request_id}
    for message in messages:
        message.ClearField("request_id")
    return cut, [text_format.MessageToString(message, as_one_line=True) for message in messages]


USAGE = "usage { prompt_tokens: 3 completion_tokens: %d total_tokens: %d cached_prompt_tokens: 0 }"


def test_plain_tokens() -> None:
    _, lines = play(script(one_by_one(tokens(2))), Request("r"))
    assert lines == [
        'token { output_index: 0 tokens { token_id: 100 } text: " w0" }',
        'token { output_index: 0 tokens { token_id: 101 } text: " w1" }',
        "finished { output_index: 0 reason: FINISH_REASON_LENGTH } " + USAGE % (2, 5),
    ]


def test_possible_stop_is_held_and_let_go() -> None:
    request = Request("r", stops=(StopText("AB"),))
    _, lines = play(script(one_by_one(pieces("A", "C"))), request)
    assert lines == [
        'token { output_index: 0 tokens { token_id: 100 } tokens { token_id: 101 } text: "AC" }',
        "finished { output_index: 0 reason: FINISH_REASON_LENGTH } " + USAGE % (2, 5),
    ]


def test_excluded_stop_is_never_shown() -> None:
    request = Request("r", stops=(StopText("AB"),))
    _, lines = play(script(one_by_one(pieces("xA", "By", "z"))), request)
    # The first token stays: part of its text is visible.
    assert lines == [
        'token { output_index: 0 tokens { token_id: 100 } text: "x" }',
        'finished { output_index: 0 reason: FINISH_REASON_STOP stop_match { stop_text: "AB" } } ' + USAGE % (1, 4),
    ]


def test_included_stop_flows_at_once() -> None:
    request = Request("r", stops=(StopText("AB"),), include_stop=True)
    _, lines = play(script(one_by_one(pieces("xA", "By"))), request)
    assert lines == [
        'token { output_index: 0 tokens { token_id: 100 } text: "xA" }',
        'token { output_index: 0 tokens { token_id: 101 } text: "B" }',
        'finished { output_index: 0 reason: FINISH_REASON_STOP stop_match { stop_text: "AB" } } ' + USAGE % (2, 5),
    ]


@pytest.mark.parametrize(
    ("request_", "match"),
    [
        (Request("r", stops=(StopToken(100),)), "stop_token_id: 100"),
        (Request("r", ignore_eos=False), "eos_token_id: 2"),
    ],
)
def test_stop_on_a_token(request_: Request, match: str) -> None:
    last = 100 if request_.stops else 2
    _, lines = play(script(one_by_one((Token(5, b"a"), Token(last, b"b")))), request_)
    assert lines == [
        'token { output_index: 0 tokens { token_id: 5 } text: "a" }',
        f"finished {{ output_index: 0 reason: FINISH_REASON_STOP stop_match {{ {match} }} }} " + USAGE % (1, 4),
    ]


def test_nothing_but_a_finish() -> None:
    _, lines = play(Script(cached_tokens=None), Request("r"))
    assert lines == [
        "finished { output_index: 0 reason: FINISH_REASON_LENGTH } usage { prompt_tokens: 3 total_tokens: 3 }"
    ]


def test_usage_is_on_the_last_message_of_several_sequences() -> None:
    played = script(side_by_side(tokens(1), tokens(2, start=200)), cached_tokens=2)
    _, lines = play(played, Request("r", num_sequences=2))
    assert lines == [
        'token { output_index: 0 tokens { token_id: 100 } text: " w0" }',
        "finished { output_index: 0 reason: FINISH_REASON_LENGTH }",
        'token { output_index: 1 tokens { token_id: 200 } text: " w0" }',
        'token { output_index: 1 tokens { token_id: 201 } text: " w1" }',
        "finished { output_index: 1 reason: FINISH_REASON_LENGTH } "
        "usage { prompt_tokens: 3 completion_tokens: 3 total_tokens: 6 cached_prompt_tokens: 2 }",
    ]


def test_scores_are_bounded_sorted_and_cut() -> None:
    candidates = (
        Candidate(9, -math.inf, 3),
        Candidate(8, 0.25, 1),
        Candidate(7, math.nan, 2),
        Candidate(6, -1.0, 4),
    )
    token = Token(9, b"a", -math.inf, 3, candidates)
    played = script(one_by_one([token]), prompt=(token, token))
    _, lines = play(played, Request("r", logprobs=3, prompt_logprobs=1))
    best = "candidates { token_id: 8 rank: 1 }"
    assert lines[0] == (
        f"prompt {{ tokens {{ token_id: 9 }} tokens {{ token_id: 9 logprob: -9999.0 rank: 3 {best} }} }}"
    )
    assert lines[1] == (
        f"token {{ output_index: 0 tokens {{ token_id: 9 logprob: -9999.0 rank: 3 {best} "
        "candidates { token_id: 7 logprob: -9999.0 rank: 2 } candidates { token_id: 9 logprob: -9999.0 rank: 3 } } "
        'text: "a" }'
    )


def test_no_scores_unless_asked() -> None:
    plain, asked = Request("r"), Request("r", logprobs=0)
    played = script(one_by_one(scored(tokens(1))))
    assert "logprob" not in play(played, plain)[1][0]
    assert "tokens { token_id: 100 logprob: -0.125 rank: 1 }" in play(played, asked)[1][0]


def test_prompt_without_scores_lists_the_ids() -> None:
    _, lines = play(Script(), Request("r", prompt_logprobs=2))
    assert lines[0] == "prompt { tokens { token_id: 1 } tokens { token_id: 2 } tokens { token_id: 3 } }"


@pytest.mark.parametrize(
    ("played", "request_"),
    [
        (script(one_by_one(tokens(1)), ending=Ending.NOTHING), Request("r")),
        (script(side_by_side(tokens(1), tokens(1))), Request("r")),
        (Script((Step((Advance(0, (), Finish(FinishReason.STOP)),)),)), Request("r")),
    ],
    ids=["no finish", "more sequences than asked for", "stop without a match"],
)
def test_courses_without_a_rule(played: Script, request_: Request) -> None:
    with pytest.raises(ValueError, match="sequence"):
        play(played, request_)


# Random scripts: the servicer's messages are the expected ones, and joined they are the outcome.

PIECES = st.one_of(
    st.sampled_from([b"A", b"B", b"x"]),
    st.text("AB x", max_size=3).map(str.encode),
    st.sampled_from([b"\xf0\x9f", b"\x98\x80", b"\xc3", b"\xa9", b"\xff", "é".encode(), b""]),
)
IDS = st.integers(min_value=0, max_value=12)


@st.composite
def sequences(draw: st.DrawFn) -> list[Token]:
    return list(scored(draw(st.lists(st.builds(Token, IDS, PIECES), max_size=9)), candidates=3))


@st.composite
def scripts(draw: st.DrawFn, num_sequences: int) -> Script:
    """One group of steps per sequence, shuffled into each other by merging steps of different sequences."""
    own_steps = []
    for index in range(num_sequences):
        sequence = draw(sequences())
        sizes: list[int] = []
        while sum(sizes) < len(sequence):
            sizes.append(draw(st.integers(min_value=0, max_value=len(sequence) - sum(sizes))))
        own_steps.append([advance for step in in_steps(sequence, sizes, index=index) for advance in step.advances])
    steps = []
    while any(own_steps):
        waiting = [index for index, left in enumerate(own_steps) if left]
        going = draw(st.sets(st.sampled_from(waiting), min_size=1))
        steps.append(Step(tuple(own_steps[index].pop(0) for index in sorted(going))))
        if draw(st.booleans()):
            steps.append(Step())
    cached = draw(st.sampled_from([None, 0, 2, 99]))
    return Script(tuple(steps), prompt=scored(tokens(3), candidates=2), cached_tokens=cached)


STOPS = st.one_of(
    st.text("AB", min_size=2, max_size=4).map(StopText),
    st.text("ABx é", min_size=1, max_size=4).map(StopText),
    st.sampled_from(["😀", "A\ufffd", "ABAB", "AAB"]).map(StopText),
    IDS.map(StopToken),
)


@st.composite
def exchanges(draw: st.DrawFn) -> tuple[Request, Script]:
    num_sequences = draw(st.sampled_from([None, 1, 2, 3]))
    request = Request(
        "r",
        num_sequences=num_sequences,
        max_tokens=draw(st.sampled_from([None, 1, 3, 100])),
        min_tokens=draw(st.sampled_from([None, 0, 2])),
        stops=tuple(draw(st.lists(STOPS, max_size=3))),
        include_stop=draw(st.sampled_from([None, True, False])),
        ignore_eos=draw(st.sampled_from([None, True, False])),
        logprobs=draw(st.sampled_from([None, 0, 2, 5])),
        prompt_logprobs=draw(st.sampled_from([None, 0, 1])),
    )
    return request, draw(scripts(num_sequences or 1))


@settings(deadline=None, max_examples=300)
@given(exchanges())
def test_servicer_gives_the_expected_messages(exchange: tuple[Request, Script]) -> None:
    request, played = exchange
    cut = course(played, request.parameters(), EOS)
    engine = ScriptedEngine(script=played, eos_token_ids=EOS)
    received = run_on_own_loop(collect(engine, OPENENGINE.to_message(request, model=engine.model)))
    assert received == OPENENGINE.expected_messages(request, PROMPT, played, cut)
    assert [generation.aborts for generation in engine.generations] == [0]


@settings(deadline=None, max_examples=300)
@given(exchanges())
def test_joined_messages_are_the_outcome(exchange: tuple[Request, Script]) -> None:
    request, played = exchange
    cut = course(played, request.parameters(), EOS)
    ids: dict[int | None, list[int]] = {}
    texts: dict[int | None, str] = {}
    finishes: dict[int | None, Finish | None] = {}
    messages = OPENENGINE.expected_messages(request, PROMPT, played, cut)
    for at, message in enumerate(messages):
        event = OPENENGINE.to_event(message)
        assert (event.usage is not None) == (at == len(messages) - 1)
        match event:
            case TokensEvent(index, received, text):
                assert index not in finishes
                assert received or text
                ids.setdefault(index, []).extend(token.id for token in received)
                texts[index] = texts.get(index, "") + (text or "")
            case FinishEvent(index, finish):
                assert index not in finishes
                finishes[index] = finish
            case ErrorEvent():
                pytest.fail(f"unexpected {event}")
    for index, outcome in enumerate(cut.outcome):
        assert tuple(ids.get(index, [])) == outcome.token_ids
        assert texts.get(index, "") == outcome.text
        assert finishes[index] == outcome.finish
    assert len(finishes) == len(cut.outcome)
