"""The reference servicer on real servers: what it streams, what it refuses, and what it leaves behind."""

from __future__ import annotations

import logging
from dataclasses import replace

import pytest
from smg_engine import SECRET, WORDS, HandMadeEngine, HandMadeGeneration, SmgClient, drain, ids, serving
from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.base import (
    AbortRefused,
    EngineDown,
    EngineFull,
    InvalidRequest,
    SequenceState,
)
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.script import (
    Candidate,
    Ending,
    Finish,
    FinishReason,
    Refusal,
    StopText,
    Token,
    one_by_one,
    pieces,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.smg import SMG
from pytest_grpc_conformance.servers.base import ServerLibrary
from pytest_grpc_conformance.targets.loop_thread import LoopThread

# Streaming.


def test_each_result_goes_out_while_the_next_is_held(engine: GatedEngine, client: SmgClient) -> None:
    """Nothing is gathered and nothing lags behind (F015, F018)."""
    gate = engine.prepare("r", script(WORDS))
    call = client.start(Request("r"))
    for position in range(3):
        gate.release()
        assert ids(next(call)) == [100 + position]
    assert next(call).complete.finish_reason == "length"
    assert drain(call).code == "OK"


def test_stop_text_that_cannot_have_begun_holds_nothing_back(engine: GatedEngine, client: SmgClient) -> None:
    """F017."""
    gate = engine.prepare("r", script(WORDS))
    call = client.start(Request("r", stops=(StopText("QQQQQQ"),)))
    for position in range(2):
        gate.release()
        assert ids(next(call)) == [100 + position]
    call.cancel()


def test_head_of_a_stop_is_not_shown_before_it_is_decided(engine: GatedEngine, client: SmgClient) -> None:
    """F029: the first message comes only with the second result, and without the stop's tokens."""
    gate = engine.prepare("r", script(one_by_one(pieces("ab", "DE", "FG"))))
    call = client.start(Request("r", stops=(StopText("DEFG"),)))
    gate.release(2)
    assert ids(next(call)) == [100]
    gate.delivered(2).wait()
    gate.release()
    ended = drain(call)
    assert ended.chunks == []
    [complete] = ended.completes
    assert (list(complete.output_token_ids), complete.matched_stop_str) == ([100], "DEFG")


def test_complete_of_an_early_sequence_does_not_wait_for_the_others(engine: GatedEngine, client: SmgClient) -> None:
    gate = engine.prepare("r", script(side_by_side(tokens(1), tokens(2, start=200))))
    call = client.start(Request("r", num_sequences=2))
    gate.release()
    first = [next(call) for _ in range(3)]
    assert [message.WhichOneof("response") for message in first] == ["chunk", "complete", "chunk"]
    assert first[1].complete.sequence_index == 0
    gate.release()
    ended = drain(call)
    assert (ended.code, ended.completes[0].sequence_index) == ("OK", 1)


def test_concurrent_streams_do_not_mix(engine: GatedEngine, client: SmgClient) -> None:
    gates = {n: engine.prepare(f"r{n}", script(one_by_one(tokens(5, start=1000 * (n + 1))))) for n in range(32)}
    calls = {n: client.start(Request(f"r{n}")) for n in gates}
    for _ in range(5):
        for gate in gates.values():
            gate.submitted().wait()
            gate.release()
    for n, call in calls.items():
        [complete] = drain(call).completes
        assert list(complete.output_token_ids) == [1000 * (n + 1) + k for k in range(5)]


def test_end_inside_submit_is_not_lost(library: ServerLibrary, loop: LoopThread) -> None:
    """F009: the handle says ``finished`` before its results have been taken."""
    states = [
        [SequenceState(0, [Token(5)], "", [0])],
        [SequenceState(0, [Token(5), Token(6)], "", [0, 0], Finish(FinishReason.LENGTH))],
    ]
    generation = HandMadeGeneration(states, finished=True)
    with serving(HandMadeEngine(generation), library, loop) as client:
        ended = client.generate(Request("r"))
    assert (ended.code, [list(chunk.token_ids) for chunk in ended.chunks]) == ("OK", [[5], [6]])
    assert generation.aborts == 0


def test_cached_count_does_not_change_within_a_stream(library: ServerLibrary, loop: LoopThread) -> None:
    """Whatever the engine says later (SMG-CHK-008)."""

    class Warming(HandMadeGeneration):
        async def __anext__(self) -> HandMadeGeneration:
            self.cached_tokens = self.taken
            return await super().__anext__()

    state = SequenceState(0, [Token(5)], "", [0])
    generation = Warming([[state], [replace(state, finish=Finish(FinishReason.LENGTH))]])
    with serving(HandMadeEngine(generation), library, loop) as client:
        ended = client.generate(Request("r"))
    assert generation.cached_tokens == 2
    assert ended.chunks[0].cached_tokens == ended.completes[0].cached_tokens == 0


def test_engine_with_more_alternatives_is_cut_to_the_best(library: ServerLibrary, loop: LoopThread) -> None:
    """As engines do that add the sampled token to the best ones, in whatever order (SMG-LP-005)."""
    alternatives = (Candidate(9, -4.0, 9), Candidate(7, -0.5, 1), Candidate(8, -1.0, 2))
    token = Token(9, b"", -4.0, 9, alternatives)
    generation = HandMadeGeneration([[SequenceState(0, [token], "", [0], Finish(FinishReason.LENGTH))]])
    with serving(HandMadeEngine(generation), library, loop) as client:
        [complete] = client.generate(Request("r", logprobs=2)).completes
    [entry] = complete.logprobs
    assert (entry.token_id, entry.logprob) == (9, -4.0)
    assert [(other.token_id, other.logprob) for other in entry.top_logprobs] == [(7, -0.5), (8, -1.0)]


# Refusals.


@pytest.mark.parametrize(
    ("kind", "code"),
    [("invalid", "INVALID_ARGUMENT"), ("full", "RESOURCE_EXHAUSTED"), ("down", "UNAVAILABLE")],
)
def test_refusal_of_the_engine_is_a_status(engine: GatedEngine, client: SmgClient, kind: str, code: str) -> None:
    engine.prepare("r", script(refusal=Refusal(kind, "no room")))
    ended = client.generate(Request("r"))
    assert (ended.messages, ended.code) == ([], code)
    assert ended.details
    engine.prepare("r", script(WORDS), open=True)
    assert client.generate(Request("r")).code == "OK"


@pytest.mark.parametrize(
    "text",
    ["x" * 65536, "\U0001f600" * 65536, "50%\né世", "lone \udc80 surrogate"],
    ids=["long", "wide", "odd", "lone"],
)
def test_text_of_a_refusal_arrives_with_its_code(text: str, library: ServerLibrary, loop: LoopThread) -> None:
    """F061, F062."""
    with serving(HandMadeEngine(InvalidRequest(text)), library, loop) as client:
        ended = client.generate(Request("r"))
    assert ended.code == "INVALID_ARGUMENT"
    assert ended.details == text[:500].replace("\udc80", "?")


def test_invalid_request_never_reaches_the_engine(engine: GatedEngine, client: SmgClient) -> None:
    """Twice, then a good one (F054, F056, F064)."""
    for _ in range(2):
        ended = client.generate(Request("r", max_tokens=0))
        assert (ended.messages, ended.code) == ([], "INVALID_ARGUMENT")
        assert "max_tokens" in ended.details
    assert engine.submissions == []
    engine.prepare("r", script(WORDS), open=True)
    assert client.generate(Request("r")).code == "OK"


def test_prompt_beyond_the_announced_length_is_refused(engine: GatedEngine, client: SmgClient) -> None:
    longest = client.stub.GetModelInfo(pb.GetModelInfoRequest()).max_input_len
    engine.prepare("r", script(WORDS), open=True)
    assert client.generate(Request("r", prompt=(1,) * (longest + 1))).code == "INVALID_ARGUMENT"
    assert client.generate(Request("r", prompt=(1,) * longest)).code == "OK"


def test_unsupported_part_is_refused(engine: GatedEngine, client: SmgClient) -> None:
    message = SMG.to_message(Request("r"), model="")
    message.bad.append("word")
    ended = client.generate(message)
    assert (ended.code, engine.submissions) == ("UNIMPLEMENTED", [])


def test_duplicate_id_is_refused_and_the_first_stream_goes_on(engine: GatedEngine, client: SmgClient) -> None:
    gate = engine.prepare("r", script(WORDS))
    first = client.start(Request("r"))
    gate.release()
    assert ids(next(first)) == [100]
    assert client.generate(Request("r")).code == "ALREADY_EXISTS"
    assert len(engine.submissions) == 1
    gate.release_all()
    assert drain(first).completes[0].completion_tokens == 3
    engine.prepare("r", script(WORDS), open=True)
    assert client.generate(Request("r")).code == "OK"


# Failures after acceptance.


@pytest.mark.parametrize("streaming", [True, False])
@pytest.mark.parametrize("ending", [Ending.FAILURE, Ending.NOTHING])
def test_failed_request_is_a_status_without_the_engines_words(
    engine: GatedEngine, client: SmgClient, ending: Ending, streaming: bool
) -> None:
    """What was sent stays; no success for an unfinished sequence (F043, F046, F053, F057)."""
    failing = script(WORDS, ending=ending, failure=SECRET)
    for _ in range(2):
        engine.prepare("r", failing, open=True)
        ended = client.generate(Request("r", streaming=streaming))
        assert ended.code == "INTERNAL"
        assert "SECRET" not in ended.details
        assert ".py" not in ended.details
        assert "engine" in ended.details
        assert [list(chunk.token_ids) for chunk in ended.chunks] == ([[100], [101], [102]] if streaming else [])
        assert ended.completes == []
    assert engine.aborts == []


def test_sequence_that_finished_before_the_failure_keeps_its_complete(engine: GatedEngine, client: SmgClient) -> None:
    steps = side_by_side(tokens(1), tokens(3, start=200))[:2]
    engine.prepare("r", script(steps, ending=Ending.FAILURE), open=True)
    ended = client.generate(Request("r", num_sequences=2))
    assert ended.code == "INTERNAL"
    assert [complete.sequence_index for complete in ended.completes] == [0]


def test_death_of_the_engine_ends_every_stream(engine: GatedEngine, client: SmgClient) -> None:
    """One of them before its first token (F052)."""
    gates = [engine.prepare(f"r{n}", script(WORDS)) for n in range(3)]
    calls = [client.start(Request(f"r{n}")) for n in range(3)]
    for gate in gates:
        gate.submitted().wait()
    for gate, call in list(zip(gates, calls, strict=True))[1:]:
        gate.release()
        next(call)
    engine.kill(SECRET)
    for call in calls:
        ended = drain(call)
        assert ended.code == "UNAVAILABLE"
        assert "SECRET" not in ended.details
    assert engine.aborts == []
    assert client.stub.HealthCheck(pb.HealthCheckRequest()).status != "OK"
    assert client.generate(Request("late")).code == "UNAVAILABLE"


@pytest.mark.parametrize(
    ("generation", "aborts"),
    [
        pytest.param(HandMadeGeneration([], RuntimeError(SECRET)), 1, id="foreign-error"),
        pytest.param(HandMadeGeneration([[SequenceState(0, [Token(2**40)], "", [0])]]), 1, id="id-too-large"),
        pytest.param(
            HandMadeGeneration([[SequenceState(0, [Token(5)], "", [0])]], finished=True),
            0,
            id="end-without-finish",
        ),
        pytest.param(HandMadeGeneration([[]], finished=True), 0, id="end-without-outputs"),
        pytest.param(
            HandMadeGeneration([], RuntimeError(SECRET), abort_error=AbortRefused(SECRET)),
            1,
            id="refused-abort",
        ),
        pytest.param(HandMadeGeneration([], RuntimeError(SECRET), abort_error=KeyError(SECRET)), 1, id="broken-abort"),
    ],
)
def test_broken_engine_is_an_internal_error(
    generation: HandMadeGeneration,
    aborts: int,
    library: ServerLibrary,
    loop: LoopThread,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The engine is told to stop unless it has reported an end; its words go to the log only."""
    generation.taken = generation.aborts = 0
    with serving(HandMadeEngine(generation), library, loop) as client, caplog.at_level(logging.ERROR):
        ended = client.generate(Request("r"))
        assert (ended.code, ended.completes) == ("INTERNAL", [])
        assert "SECRET" not in ended.details
        assert generation.aborts == aborts
        assert (generation.error is not None) == (SECRET in caplog.text)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (EngineFull(SECRET), "RESOURCE_EXHAUSTED"),
        (EngineDown(SECRET), "UNAVAILABLE"),
        (KeyError(SECRET), "INTERNAL"),
    ],
    ids=["full", "down", "bug"],
)
def test_submission_error_does_not_leak(error: Exception, code: str, library: ServerLibrary, loop: LoopThread) -> None:
    with serving(HandMadeEngine(error), library, loop) as client:
        ended = client.generate(Request("r"))
    assert ended.code == code
    assert "SECRET" not in ended.details


def test_finished_sequences_suffice_when_the_flag_is_missing(library: ServerLibrary, loop: LoopThread) -> None:
    """The iterator's end counts too, once nothing is owed."""
    generation = HandMadeGeneration([[SequenceState(0, [Token(5)], "", [0], Finish(FinishReason.LENGTH))]])
    with serving(HandMadeEngine(generation), library, loop) as client:
        assert client.generate(Request("r")).code == "OK"
    assert generation.aborts == 0
