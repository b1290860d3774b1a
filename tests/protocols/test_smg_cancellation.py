"""How a stream of the reference servicer ends before its time: the client leaves, or somebody calls Abort."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from own_loop import run_on_own_loop
from smg_engine import SECRET, WORDS, HandMadeEngine, HandMadeGeneration, SmgClient, drain, ids, serving
from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.base import SequenceState
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.script import (
    AbortConduct,
    Finish,
    FinishReason,
    StopText,
    Token,
    one_by_one,
    pieces,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.protocols.base import AbortAnswer, Request
from pytest_grpc_conformance.protocols.smg import SMG
from pytest_grpc_conformance.protocols.smg.servicer import TrtllmServicer
from pytest_grpc_conformance.servers.base import ServerLibrary
from pytest_grpc_conformance.targets.loop_thread import LoopThread

# The client goes away.


@pytest.mark.parametrize("received", [0, 1], ids=["silent", "after-one"])
@pytest.mark.parametrize("manner", ["cancel", "deadline", "disconnect"])
def test_engine_is_aborted_once_when_the_client_leaves(
    engine: GatedEngine, client: SmgClient, manner: str, received: int
) -> None:
    """Also while nothing is sent (F095, F096, F114); the id can be used again (F119)."""
    gate = engine.prepare("r", script(WORDS, abort=AbortConduct.SILENT))
    other = SmgClient(client.address)
    call = other.start(Request("r"), timeout=1 if manner == "deadline" else 20)
    gate.submitted().wait()
    if received:
        gate.release()
        assert ids(next(call)) == [100]
    if manner == "cancel":
        call.cancel()
    elif manner == "disconnect":
        other.channel.close()
    gate.aborted().wait()
    gate.settled().wait()
    engine.prepare("r", script(WORDS), open=True)
    assert client.generate(Request("r")).code == "OK"
    assert engine.aborts == ["r"]
    other.channel.close()


def test_engine_is_aborted_when_a_slow_reader_leaves(engine: GatedEngine, client: SmgClient) -> None:
    """The servicer then stands at a ``yield``, as nothing more fits the client's window."""
    wide = one_by_one([Token(n, b"x") for n in range(20_000, 22_000)])
    gate = engine.prepare("r" * 2000, script(wide, one_by_one(tokens(1))))
    call = client.start(Request("r" * 2000))
    gate.release(2000)
    next(call)
    call.cancel()
    gate.aborted().wait()
    assert engine.aborts == ["r" * 2000]


@pytest.mark.parametrize(("finish", "aborts"), [(None, 1), (Finish(FinishReason.LENGTH), 0)], ids=["running", "ended"])
def test_stream_closed_at_a_yield_aborts_what_still_runs(finish: Finish | None, aborts: int) -> None:
    """Whatever the server library buffers: closed where it stands, and no abort after the engine's end."""
    state = SequenceState(0, [Token(5)], "", [0], finish)
    generation = HandMadeGeneration([[state]], finished=finish is not None)
    servicer = TrtllmServicer(HandMadeEngine(generation))
    message = SMG.to_message(Request("r"), model="")

    async def one_message() -> None:
        for _ in range(2):  # The second time the id is free again.
            generation.taken = 0
            stream = servicer.Generate(message, context=None)
            assert ids(await anext(stream)) == [5]
            await stream.aclose()  # type: ignore[attr-defined]

    run_on_own_loop(one_message())
    assert generation.aborts == 2 * aborts


def test_abort_of_a_stream_that_only_drains_is_not_passed_on() -> None:
    """The engine has reported its end; the client has yet to read it (F099)."""
    state = SequenceState(0, [Token(5)], "", [0], Finish(FinishReason.LENGTH))
    generation = HandMadeGeneration([[state]], finished=True)
    servicer = TrtllmServicer(HandMadeEngine(generation))

    async def abort_while_draining() -> Any:
        stream = servicer.Generate(SMG.to_message(Request("r"), model=""), context=None)
        await anext(stream)
        answer = await servicer.Abort(pb.AbortRequest(request_id="r"), context=None)
        rest = [message async for message in stream]
        assert rest[0].complete.finish_reason == "length"
        return answer

    assert not run_on_own_loop(abort_while_draining()).success
    assert generation.aborts == 0


def test_one_client_leaves_and_the_others_stay(engine: GatedEngine, client: SmgClient) -> None:
    leaving, staying = (engine.prepare(name, script(WORDS)) for name in ("r1", "r12"))
    calls = [client.start(Request(name)) for name in ("r1", "r12")]
    leaving.submitted().wait()
    calls[0].cancel()
    leaving.aborted().wait()
    staying.submitted().wait()
    staying.release_all()
    assert drain(calls[1]).completes[0].completion_tokens == 3
    assert engine.aborts == ["r1"]


# Abort.


def abort(client: SmgClient, request_id: str) -> Any:
    return client.stub.Abort(pb.AbortRequest(request_id=request_id), timeout=20)


@pytest.mark.parametrize("received", [0, 1], ids=["silent", "after-one"])
@pytest.mark.parametrize("streaming", [True, False])
def test_aborted_stream_ends_with_cancelled_completes(
    engine: GatedEngine, client: SmgClient, received: int, streaming: bool
) -> None:
    gate = engine.prepare("r", script(side_by_side(tokens(3), tokens(3, start=200))))
    call = client.start(Request("r", num_sequences=2, streaming=streaming))
    gate.submitted().wait()
    gate.release(received)
    gate.delivered(received).wait()
    answer = abort(client, "r")
    assert (answer.success, answer.message) == (True, "Request r aborted")
    ended = drain(call)
    assert ended.code == "OK"
    assert [complete.finish_reason for complete in ended.completes] == ["cancelled"] * 2
    assert [len(complete.output_token_ids) for complete in ended.completes] == [received] * 2
    assert engine.aborts == ["r"]
    engine.prepare("r", script(WORDS), open=True)
    assert client.generate(Request("r")).code == "OK"


def test_aborted_stream_of_a_silent_engine_ends_cancelled(engine: GatedEngine, client: SmgClient) -> None:
    gate = engine.prepare("r", script(WORDS, abort=AbortConduct.SILENT))
    call = client.start(Request("r"))
    gate.submitted().wait()
    assert abort(client, "r").success
    ended = drain(call)
    assert (ended.completes, ended.code) == ([], "CANCELLED")
    assert engine.aborts == ["r"]


def test_held_back_tokens_are_released_by_an_abort(engine: GatedEngine, client: SmgClient) -> None:
    gate = engine.prepare("r", script(one_by_one(pieces("a", "DE", "FG"))))
    call = client.start(Request("r", stops=(StopText("DEFG"),)))
    gate.submitted().wait()
    gate.release(2)
    gate.delivered(2).wait()
    assert abort(client, "r").success
    ended = drain(call)
    assert [list(chunk.token_ids) for chunk in ended.chunks] == [[100], [101]]
    assert list(ended.completes[0].output_token_ids) == [100, 101]


def test_refused_abort_lets_the_stream_run_on(engine: GatedEngine, client: SmgClient) -> None:
    """The id is kept, so that a second try reaches the engine."""
    gate = engine.prepare("r", script(WORDS, abort=AbortConduct.REFUSE))
    call = client.start(Request("r"))
    gate.submitted().wait()
    for _ in range(2):
        answer = abort(client, "r")
        assert not answer.success
        assert "refused" in answer.message
    gate.release_all()
    ended = drain(call)
    assert (ended.code, ended.completes[0].finish_reason) == ("OK", "length")
    assert engine.aborts == ["r", "r"]


def test_abort_answers_at_once_and_counts_once(engine: GatedEngine, client: SmgClient) -> None:
    """The engine takes its time; a second abort and the client's own cancel are not passed on (F099)."""
    gate = engine.prepare("r", script(WORDS, abort=AbortConduct.SLOW))
    call = client.start(Request("r"))
    gate.submitted().wait()
    assert abort(client, "r").success
    assert not abort(client, "r").success
    call.cancel()
    engine.prepare("r", script(WORDS), open=True)
    assert client.generate_once_free(Request("r")).code == "OK"
    gate.release_abort()
    gate.settled().wait()
    assert engine.aborts == ["r"]


def test_abort_of_a_slow_engine_ends_the_stream_when_it_is_carried_out(engine: GatedEngine, client: SmgClient) -> None:
    gate = engine.prepare("r", script(WORDS, abort=AbortConduct.SLOW))
    call = client.start(Request("r"))
    gate.submitted().wait()
    assert abort(client, "r").success
    gate.release_abort()
    assert drain(call).completes[0].finish_reason == "cancelled"
    assert engine.aborts == ["r"]


def test_abort_of_what_does_not_run_is_no_error(engine: GatedEngine, client: SmgClient) -> None:
    """Unknown, empty, finished (F099, F102)."""
    engine.prepare("done", script(WORDS), open=True)
    client.generate(Request("done"))
    for request_id in ("unknown", "", "done", "don"):
        answer = abort(client, request_id)
        assert (answer.success, answer.message) == (False, f"Request {request_id} not found")
        assert SMG.abort(client.channel, request_id, 20) is AbortAnswer.NOT_FOUND
    assert engine.aborts == []


def test_abort_after_the_client_left_is_harmless(engine: GatedEngine, client: SmgClient) -> None:
    """The gateway sends one for every dropped stream (SMG-ABT-006)."""
    gate = engine.prepare("r", script(WORDS))
    call = client.start(Request("r"))
    gate.submitted().wait()
    call.cancel()
    gate.aborted().wait()
    assert not abort(client, "r").success
    assert engine.aborts == ["r"]


def test_abort_reaches_its_target_only(engine: GatedEngine, client: SmgClient) -> None:
    """F098: not the ids that begin with it."""
    gates = {name: engine.prepare(name, script(WORDS)) for name in ("r1", "r12")}
    calls = {name: client.start(Request(name)) for name in gates}
    for gate in gates.values():
        gate.submitted().wait()
    assert SMG.abort(client.channel, "r1", 20) is AbortAnswer.ABORTED
    assert drain(calls["r1"]).completes[0].finish_reason == "cancelled"
    gates["r12"].release_all()
    assert drain(calls["r12"]).completes[0].finish_reason == "length"


def test_broken_abort_is_answered_without_the_engines_words(library: ServerLibrary, loop: LoopThread) -> None:
    class Held(HandMadeGeneration):
        async def __anext__(self) -> HandMadeGeneration:
            started.set()
            await release.wait()
            return await super().__anext__()

    started, release = threading.Event(), asyncio.Event()
    state = SequenceState(0, [Token(5)], "", [0], Finish(FinishReason.LENGTH))
    generation = Held([[state]], finished=False, abort_error=KeyError(SECRET))
    with serving(HandMadeEngine(generation), library, loop) as client:
        call = client.start(Request("r"))
        assert started.wait(20)
        answer = abort(client, "r")
        assert not answer.success
        assert "SECRET" not in answer.message
        loop.loop.call_soon_threadsafe(release.set)
        assert drain(call).code == "OK"
