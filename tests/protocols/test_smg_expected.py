"""The reference servicer against the messages that the rules call for, which are computed without it."""

from __future__ import annotations

import ast
import inspect
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from smg_engine import SmgClient, serving
from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.course import Course, course
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.script import (
    Advance,
    Candidate,
    EndOfSequence,
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
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.smg import SMG, expected
from pytest_grpc_conformance.servers.grpcio import GrpcioAio
from pytest_grpc_conformance.targets.loop_thread import LoopThread

R = Request("")
numbers = itertools.count()


@pytest.fixture(scope="module")
def engine() -> Iterator[GatedEngine]:
    with GatedEngine() as engine:
        yield engine


@pytest.fixture(scope="module")
def client(engine: GatedEngine, loop: LoopThread) -> Iterator[SmgClient]:
    with serving(engine, GrpcioAio(), loop) as client:
        yield client


def play(engine: GatedEngine, client: SmgClient, request: Request, played: Script) -> tuple[list[Any], Course]:
    """What the servicer sent, having been checked against the rules, and the course it is about."""
    request = request.but(request_id=f"r{next(numbers)}")
    engine.prepare(request.request_id, played, open=True)
    ended = client.generate(request)
    assert (ended.code, ended.details) == ("OK", "")
    taken = course(played, request.parameters(), engine.eos_token_ids)
    wanted = SMG.expected_messages(request, Prompt(prompt_of(request)), played, taken)
    assert ended.messages == wanted
    check_joined(ended.messages, taken)
    return ended.messages, taken


def prompt_of(request: Request) -> tuple[int, ...]:
    assert isinstance(request.prompt, tuple)
    return request.prompt


def check_joined(messages: Sequence[Any], taken: Course) -> None:
    """Joined chunks, ``complete`` and the course's outcome are the same, for each sequence (SMG-CHK-003)."""
    for index, outcome in enumerate(taken.outcome):
        chunks = [m.chunk for m in messages if m.HasField("chunk") and m.chunk.sequence_index == index]
        [complete] = [m.complete for m in messages if m.HasField("complete") and m.complete.sequence_index == index]
        assert tuple(complete.output_token_ids) == outcome.token_ids
        assert complete.completion_tokens == len(outcome.tokens)
        if chunks:
            assert [token for chunk in chunks for token in chunk.token_ids] == list(complete.output_token_ids)
            assert [entry for chunk in chunks for entry in chunk.logprobs] == list(complete.logprobs)
            running = itertools.accumulate(len(chunk.token_ids) for chunk in chunks)
            assert [chunk.completion_tokens for chunk in chunks] == list(running)
            assert all(chunk.token_ids for chunk in chunks)


def summary(messages: Sequence[Any]) -> list[Any]:
    """Ids of each chunk; of each ``complete`` the ids, the reason and the match."""
    short: list[Any] = []
    for message in messages:
        if message.HasField("chunk"):
            short.append(list(message.chunk.token_ids))
        else:
            done = message.complete
            member = done.WhichOneof("matched_stop")
            short.append((list(done.output_token_ids), done.finish_reason, member and getattr(done, member)))
    return short


EMOJI = pieces(b"a", "\U0001f600".encode()[:2], "\U0001f600".encode()[2:], b"b")


@pytest.mark.parametrize(
    ("request_", "played", "wanted"),
    [
        pytest.param(R, script(one_by_one(tokens(2))), [[100], [101], ([100, 101], "length", None)], id="one-by-one"),
        pytest.param(
            R,
            script(in_steps(tokens(5), [1, 3, 0, 1])),
            [[100], [101, 102, 103], [104], ([100, 101, 102, 103, 104], "length", None)],
            id="step-sizes",
        ),
        pytest.param(R, script(), [([], "length", None)], id="no-steps"),
        pytest.param(R, script(one_by_one([Token(2, b"")])), [([], "stop", None)], id="immediate-end-of-sequence"),
        pytest.param(
            R.but(ignore_eos=True),
            script(one_by_one([Token(2, b""), Token(0, b"")])),
            [[2], [0], ([2, 0], "length", None)],
            id="ignored-end-of-sequence",
        ),
        pytest.param(
            R.but(max_tokens=2),
            script(in_steps([Token(5), Token(2), Token(6)], [3])),
            [[5], ([5], "stop", None)],
            id="end-of-sequence-before-the-cap",
        ),
        pytest.param(
            R.but(max_tokens=2),
            script(in_steps(tokens(3), [3])),
            [[100, 101], ([100, 101], "length", None)],
            id="cap-within-a-step",
        ),
        pytest.param(
            R.but(stops=(StopToken(0),)),
            script(one_by_one([Token(5), Token(0), Token(6)])),
            [[5], ([5], "stop", 0)],
            id="stop-id-0",
        ),
        pytest.param(
            R.but(stops=(StopToken(2),), include_stop=True),
            script(one_by_one([Token(5), Token(2)])),
            [[5], [2], ([5, 2], "stop", 2)],
            id="included-stop-id-that-is-an-end-of-sequence-id",
        ),
        pytest.param(
            R.but(stops=(StopText("beta gamma"),)),
            script(one_by_one(pieces("alpha ", "beta", " gamma", " delta"))),
            [[100], ([100], "stop", "beta gamma")],
            id="stop-over-two-tokens",
        ),
        pytest.param(
            R.but(stops=(StopText("beta gamma"),), include_stop=True),
            script(one_by_one(pieces("alpha ", "beta", " gamma", " delta"))),
            [[100], [101], [102], ([100, 101, 102], "stop", "beta gamma")],
            id="included-stop-over-two-tokens",
        ),
        pytest.param(
            R.but(stops=(StopText(" ha"),)),
            script(in_steps(pieces("x", " ha", "y", "z"), [4])),
            [[100], ([100], "stop", " ha")],
            id="stop-within-a-step",
        ),
        pytest.param(
            R.but(stops=(StopText("xyz"),)),
            script(one_by_one(pieces("ab", "xy", "x", "xy"))),
            [[100], [101], [102, 103], ([100, 101, 102, 103], "length", None)],
            id="held-heads-are-let-go",
        ),
        pytest.param(
            R.but(stops=(StopText("\U0001f600"),)),
            script(one_by_one(EMOJI)),
            [[100], ([100], "stop", "\U0001f600")],
            id="stop-is-a-split-character",
        ),
        pytest.param(
            R.but(stops=(StopText("b"),)),
            script(one_by_one(EMOJI)),
            [[100], [101, 102], ([100, 101, 102], "stop", "b")],
            id="half-a-character-is-held",
        ),
        pytest.param(
            R.but(stops=(StopText("w0"), StopToken(102)), min_tokens=3),
            script(one_by_one(tokens(4))),
            [[100], [101], [102], [103], ([100, 101, 102, 103], "length", None)],
            id="min-tokens",
        ),
        pytest.param(
            R.but(streaming=False),
            script(one_by_one(tokens(3))),
            [([100, 101, 102], "length", None)],
            id="not-streaming",
        ),
        pytest.param(
            R.but(num_sequences=2),
            script(side_by_side(tokens(1), tokens(2, start=200))),
            [[100], ([100], "length", None), [200], [201], ([200, 201], "length", None)],
            id="two-sequences",
        ),
        pytest.param(
            R.but(num_sequences=2, streaming=False),
            script(side_by_side(tokens(2), tokens(1, start=200))),
            [([200], "length", None), ([100, 101], "length", None)],
            id="two-sequences-not-streaming",
        ),
        pytest.param(
            R.but(num_sequences=3),
            script(one_by_one(tokens(1), index=1)),
            [([], "length", None), [100], ([100], "length", None), ([], "length", None)],
            id="sequences-without-tokens",
        ),
        pytest.param(
            R,
            script(Step((Advance(0, tokens(1)),)), Step((Advance(0, (), Finish(FinishReason.CANCELLED)),))),
            [[100], ([100], "cancelled", None)],
            id="cancelled-in-an-empty-step",
        ),
    ],
)
def test_course_becomes_messages(
    engine: GatedEngine, client: SmgClient, request_: Request, played: Script, wanted: list[Any]
) -> None:
    messages, _ = play(engine, client, request_, played)
    assert summary(messages) == wanted


@pytest.mark.parametrize(("cached", "sent"), [(None, 0), (0, 0), (2, 2), (9, 3)])
def test_counts_are_on_every_message(engine: GatedEngine, client: SmgClient, cached: int | None, sent: int) -> None:
    messages, _ = play(engine, client, R, script(one_by_one(tokens(2)), cached_tokens=cached))
    inner = [getattr(message, message.WhichOneof("response")) for message in messages]
    assert [(part.prompt_tokens, part.cached_tokens) for part in inner] == [(3, sent)] * 3
    assert [part.completion_tokens for part in inner] == [1, 2, 2]


def test_no_scores_unless_asked_for(engine: GatedEngine, client: SmgClient) -> None:
    played = script(one_by_one(scored(tokens(2))), prompt=scored(tokens(3, start=1)))
    messages, _ = play(engine, client, R, played)
    for message in messages:
        assert not message.chunk.logprobs
        assert not message.complete.logprobs
        assert not message.complete.prompt_logprobs


@pytest.mark.parametrize("best", [0, 1, 5])
def test_scores_belong_to_their_tokens(engine: GatedEngine, client: SmgClient, best: int) -> None:
    """Also in a step of several tokens, and for a token outside the best (SMG-LP-001 to 005, F079 to F081)."""
    steps = in_steps(scored(tokens(8)), [0, 1, 3, 4])
    messages, _ = play(engine, client, R.but(logprobs=best), script(steps))
    entries = messages[-1].complete.logprobs
    assert [(entry.token_id, entry.logprob) for entry in entries] == [(100 + n, -(n + 1) / 8) for n in range(8)]
    for position, entry in enumerate(entries):
        values = [alternative.logprob for alternative in entry.top_logprobs]
        assert len(values) == best
        assert values == sorted(values, reverse=True)
        rank = 1 + position % 7
        for place, alternative in enumerate(entry.top_logprobs, start=1):
            own = alternative.token_id == entry.token_id
            assert own == (place == rank)
            assert not own or alternative.logprob == entry.logprob


@pytest.mark.parametrize("best", [0, 2])
@pytest.mark.parametrize("streaming", [True, False])
def test_prompt_scores_are_in_complete_only(engine: GatedEngine, client: SmgClient, best: int, streaming: bool) -> None:
    """One per prompt token; the first is a placeholder, entry j scores token j (SMG-LP-006 to 008, F082)."""
    request = R.but(prompt=(7, 8, 9), prompt_logprobs=best, num_sequences=2, streaming=streaming)
    played = script(side_by_side(tokens(1), tokens(1)), prompt=scored([Token(7), Token(8), Token(9)]))
    messages, _ = play(engine, client, request, played)
    completes = [message.complete for message in messages if message.HasField("complete")]
    assert len(completes) == 2
    for complete in completes:
        entries = complete.prompt_logprobs
        assert [(e.token_id, e.logprob) for e in entries] == [(7, 0.0), (8, -2 / 8), (9, -3 / 8)]
        assert [len(entry.top_logprobs) for entry in entries] == [0, best, best]
        assert not complete.logprobs


def test_scores_are_finite_and_not_above_zero(engine: GatedEngine, client: SmgClient) -> None:
    """SMG-LP-010, F084."""
    odd = (-math.inf, math.nan, 0.5, -20_000.0, None, -0.0, math.inf)
    sequence = [Token(50 + n, b"", value, 1) for n, value in enumerate(odd)]
    sequence[0] = replace(sequence[0], candidates=(Candidate(9, 0.0, 1), Candidate(50, -math.inf, 2)))
    messages, _ = play(engine, client, R.but(logprobs=2), script(one_by_one(sequence)))
    entries = messages[-1].complete.logprobs
    assert [entry.logprob for entry in entries] == [-9999.0, -9999.0, 0.0, -9999.0, -9999.0, 0.0, 0.0]
    assert [alternative.logprob for alternative in entries[0].top_logprobs] == [0.0, -9999.0]


def test_prompt_without_scores_keeps_its_length(engine: GatedEngine, client: SmgClient) -> None:
    messages, _ = play(engine, client, R.but(prompt_logprobs=1), script(one_by_one(tokens(1))))
    entries = messages[-1].complete.prompt_logprobs
    assert [(entry.token_id, entry.logprob) for entry in entries] == [(1, 0.0), (2, -9999.0), (3, -9999.0)]


# Any script.

ALPHABET = "ab é\U0001f600"
EOS = 2
token_ids = st.sampled_from([0, EOS, 4, 5, 6, 7])


@st.composite
def sequences(draw: st.DrawFn) -> tuple[Token, ...]:
    """Tokens whose pieces cut a text anywhere, some of them empty or no UTF-8, with scores or without."""
    raw = draw(st.text(ALPHABET, max_size=8)).encode() + draw(st.sampled_from([b"", b"\xff", b"\xf0\x9f"]))
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    parts = [raw[start:end] for start, end in itertools.pairwise([0, *cuts, len(raw)])]
    plain = [Token(draw(token_ids), part) for part in parts]
    return scored(plain) if draw(st.booleans()) else tuple(plain)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """One to three sequences of their own paces, each ending by itself or with the script."""
    paces: list[list[Advance]] = []
    for index in range(draw(st.integers(1, 3))):
        left = draw(sequences())
        advances = []
        while left:
            advances += [Advance(index)] * draw(st.integers(0, 1))
            size = draw(st.integers(1, 3))
            advances.append(Advance(index, left[:size]))
            left = left[size:]
        if draw(st.booleans()) and advances:
            finish = draw(
                st.sampled_from(
                    [
                        Finish(FinishReason.LENGTH),
                        Finish(FinishReason.CANCELLED),
                        Finish(FinishReason.STOP),
                        Finish(FinishReason.STOP, EndOfSequence(EOS)),
                    ]
                )
            )
            advances[-1] = replace(advances[-1], finish=finish)
        paces.append(advances)
    rows = itertools.zip_longest(*paces)
    steps = tuple(Step(tuple(advance for advance in row if advance is not None)) for row in rows)
    prompt = scored([Token(1), Token(2), Token(3)]) if draw(st.booleans()) else ()
    return Script(steps, prompt=prompt, cached_tokens=draw(st.sampled_from([None, 0, 2, 9])))


@st.composite
def requests(draw: st.DrawFn) -> Request:
    stops = st.one_of(st.text(ALPHABET, min_size=1, max_size=4).map(StopText), token_ids.map(StopToken))
    return Request(
        "",
        max_tokens=draw(st.integers(1, 20)),
        min_tokens=draw(st.none() | st.integers(0, 5)),
        num_sequences=draw(st.none() | st.integers(1, 3)),
        stops=tuple(draw(st.lists(stops, max_size=3))),
        include_stop=draw(st.sampled_from([None, False, True])),
        ignore_eos=draw(st.sampled_from([None, True])),
        logprobs=draw(st.sampled_from([None, 0, 2])),
        prompt_logprobs=draw(st.sampled_from([None, 0, 2])),
        streaming=draw(st.booleans()),
    )


@settings(deadline=None, max_examples=300)
@given(request_=requests(), played=scripts())
def test_any_course_becomes_the_messages_of_the_rules(
    engine: GatedEngine, client: SmgClient, request_: Request, played: Script
) -> None:
    play(engine, client, request_, played)


def test_expected_messages_stand_on_their_own() -> None:
    """The rules are worth something as an oracle only while they share no code with the servicer."""
    imported = [
        node.module or ""
        for node in ast.walk(ast.parse(inspect.getsource(expected)))
        if isinstance(node, ast.ImportFrom)
    ]
    allowed = {"__future__", "collections.abc", "dataclasses", "typing", "smg_grpc_proto.generated"}
    allowed |= {f"pytest_grpc_conformance.{name}" for name in ("engines.course", "engines.script", "protocols.base")}
    assert set(imported) <= allowed
    assert pb.GenerateResponse is SMG.generate.response
