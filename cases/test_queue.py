"""Requests that the server has accepted and the engine has no room for yet: they run in turn, or leave the queue."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import Finish, FinishReason, one_by_one, script, tokens
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import AbortAnswer, Request, Status
from pytest_grpc_conformance.targets.base import NotApplicable, Target

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gate import Gate
    from pytest_grpc_conformance.protocols.stream import GenerateStream

FOUR = script(one_by_one(tokens(4)))
GONE = Finish(FinishReason.CANCELLED)
LEAVES = "a request that waits for room leaves the engine's queue"


def _submitted(target: Target, name: str) -> tuple[Gate, GenerateStream]:
    """A request that the engine has, running if there is room for it, with every step held."""
    gate = target.prepare(name, FOUR)
    stream = target.generate(Request(name))
    asserts.reached(gate.submitted(), "the engine has the request")
    return gate, stream


def _one_runs_one_waits(target: Target) -> tuple[tuple[Gate, GenerateStream], tuple[Gate, GenerateStream]]:
    """On an engine with room for one request: one that it runs, and one that waits for its place."""
    target.engine.max_running = 1
    running = _submitted(target, "running")
    running[0].release(1)
    asserts.tokens_until(running[1], 1, running[0])
    return running, _submitted(target, "waiting")


def _whole(target: Target, stream: GenerateStream, name: str, gate: Gate) -> None:
    """The rest of a request is released, and its stream is whole."""
    gate.release_all()
    request = Request(name)
    expected = course(FOUR, request.parameters(), target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(stream, gate), expected, request, target.protocol)


def _never_runs(target: Target, running: tuple[Gate, GenerateStream], gone: Gate) -> None:
    """A request that has left the queue does not run once there is room."""
    gone.release_all()
    _whole(target, running[1], "running", running[0])
    asserts.reached(target.engine.idle(), "the engine has no request left")
    asserts.equal("steps that the engine has run of a request that left its queue", 0, gone.produced)


def _cancel(target: Target, stream: GenerateStream, gate: Gate) -> None:
    stream.cancel()
    asserts.reached(gate.settled(), LEAVES)


def _abort(target: Target, stream: GenerateStream, gate: Gate) -> None:
    _answered_as_done(asserts.done("an abort", lambda: target.client.abort("waiting"), "UNIMPLEMENTED"))
    asserts.reached(gate.settled(), LEAVES)
    sequences = asserts.ended(stream, gate).sequences.values()
    asserts.token_ids([], [token for sequence in sequences for token in sequence.tokens], "a request that never ran")


def _answered_as_done(answer: AbortAnswer | Status) -> None:
    """An abort is answered by saying that it happens. A server may have no such method (OE-ABT-004)."""
    if isinstance(answer, Status):
        raise NotApplicable("no-abort", "the server does not offer to abort requests")
    asserts.equal("the answer", AbortAnswer.ABORTED, answer)


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
def test_waiting_request_is_streamed_once_there_is_room(grpc_target: Target) -> None:
    """The server SHOULD stream a request that had to wait for room as any other, from its first token."""
    (first, stream), (waiting, later) = _one_runs_one_waits(grpc_target)
    _whole(grpc_target, stream, "running", first)
    waiting.release(1)
    asserts.token_ids(tokens(1), asserts.tokens_until(later, 1, waiting), "the first message after the wait")
    _whole(grpc_target, later, "waiting", waiting)


# Leaving the queue.

Leave = Callable[[Target, "GenerateStream", "Gate"], None]


@requirement("OE-GEN-035", "SMG-GEN-019", needs=(SCRIPTED,))
def test_cancel_takes_a_waiting_request_out_of_the_queue(grpc_target: Target) -> None:
    """The server SHOULD take a request whose client cancels it out of the engine's queue."""
    running, (gone, stream) = _one_runs_one_waits(grpc_target)
    _cancel(grpc_target, stream, gone)
    _never_runs(grpc_target, running, gone)


@requirement("OE-ABT-005", "SMG-ABT-001", needs=(SCRIPTED,))
def test_abort_takes_a_waiting_request_out_of_the_queue(grpc_target: Target) -> None:
    """The server MUST take a request that is aborted by its id out of the engine's queue."""
    running, (gone, stream) = _one_runs_one_waits(grpc_target)
    _abort(grpc_target, stream, gone)
    _never_runs(grpc_target, running, gone)


@requirement("OE-ABT-008", needs=(SCRIPTED,))
def test_abort_of_all_requests_reaches_the_queue(grpc_target: Target) -> None:
    """The server MUST abort every request when all are aborted, those that wait for room as well."""
    requests = [*_one_runs_one_waits(grpc_target), _submitted(grpc_target, "last")]
    _answered_as_done(asserts.done("an abort of all requests", grpc_target.client.abort_all, "UNIMPLEMENTED"))
    asserts.reached(grpc_target.engine.idle(), "the engine lets go of every request")
    for gate, stream in requests:
        for sequence in asserts.ended(stream, gate).sequences.values():
            asserts.equal("ends that are not told as cancelled", [], [f for f in sequence.finishes if f.finish != GONE])
        asserts.engine_aborts(1, gate, grpc_target.engine.aborts)


@requirement("OE-GEN-027", "SMG-GEN-010", needs=(SCRIPTED,))
@pytest.mark.parametrize("leave", [_cancel, _abort], ids=["left-by=cancel", "left-by=abort"])
def test_id_of_a_request_that_left_the_queue_is_free(grpc_target: Target, leave: Leave) -> None:
    """The server SHOULD serve a request in full under the id of one that left the queue before it ran."""
    (first, running), (gone, stream) = _one_runs_one_waits(grpc_target)
    leave(grpc_target, stream, gone)
    again, later = _submitted(grpc_target, "waiting")
    _whole(grpc_target, running, "running", first)
    _whole(grpc_target, later, "waiting", again)
