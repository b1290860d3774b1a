"""Abort by id: it stops the one request that it names, in whatever state that is, and says truly what it did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    AbortConduct,
    Finish,
    FinishReason,
    Script,
    one_by_one,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import AbortAnswer, Request, Status, TokensEvent, WireProtocol
from pytest_grpc_conformance.targets.base import NotApplicable, Target

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gate import Gate
    from pytest_grpc_conformance.protocols.collected import Collected
    from pytest_grpc_conformance.protocols.stream import GenerateStream

SIX = script(one_by_one(tokens(6)))
TWO = script(side_by_side(tokens(6), tokens(6, start=200)))
TOLD = pytest.mark.parametrize("told", [0, 1, 5], ids=lambda told: f"told={told}")
TOLD_MANY = pytest.mark.parametrize("told", [0, 1, 5, 64], ids=lambda told: f"told={told}")
CONDUCTS = pytest.mark.parametrize(
    "conduct", [AbortConduct.FINISH, AbortConduct.SILENT], ids=["engine=says-so", "engine=silent"]
)
RACES = 20


def _held(target: Target, request: Request, told: int, plan: Script = SIX) -> tuple[Gate, GenerateStream]:
    """A running request whose engine is silent after ``told`` steps, which the client has."""
    if told >= len(plan.steps):
        plan = plan.but(steps=one_by_one(tokens(told + 1)))
    gate = target.prepare(request.request_id, plan)
    stream = target.generate(request)
    asserts.reached(gate.submitted(), "the engine has the request")
    gate.release(told)
    asserts.tokens_until(stream, told * (request.num_sequences or 1), gate)
    return gate, stream


def _abort(target: Target, request_id: str, *codes: str) -> AbortAnswer | Status:
    """The answer to an abort. A server may have no such method (OE-ABT-004)."""
    answer = asserts.done("an abort", lambda: target.client.abort(request_id), "UNIMPLEMENTED", *codes)
    if isinstance(answer, Status) and answer.code == "UNIMPLEMENTED":
        raise NotApplicable("no-abort", "the server does not offer to abort requests")
    return answer


def _whole(target: Target, stream: GenerateStream, request: Request, *gates: Gate) -> None:
    expected = course(SIX, request.parameters(), target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(stream, *gates), expected, request, target.protocol)


def _ended_by_abort(collected: Collected, request: Request, wire: WireProtocol) -> None:
    """The legal ends of an aborted stream: finishes that say CANCELLED, or a failure that does."""
    for index, sequence in collected.sequences.items():
        for finish in sequence.finishes:
            asserts.cancelled(finish, f"sequence {index}")
            cancelled = finish.finish == Finish(FinishReason.CANCELLED)
            asserts.true("a sequence that was aborted reports no stop match", cancelled or not finish.finish, finish)
    if collected.errors or not (wire.traits.errors_in_band or collected.status.ok):
        asserts.failed(collected, wire)
        asserts.equal("errors for another cause", [], [e.code for e in collected.errors if e.code != "CANCELLED"])
    else:
        asserts.ordered(collected, request, wire)


# What an abort does.


@requirement("OE-ABT-005", "SMG-ABT-001", needs=(SCRIPTED,))
@TOLD
def test_abort_stops_the_engine(grpc_target: Target, told: int) -> None:
    """The server MUST stop the engine's work on a running request that is aborted."""
    gate, _ = _held(grpc_target, Request("gone"), told)
    _abort(grpc_target, "gone")
    asserts.reached(gate.aborted(), "an abort reaches the engine, which is silent")


@requirement("OE-ABT-005", "SMG-ABT-001", needs=(SCRIPTED,))
@TOLD
def test_abort_of_a_running_request_is_answered_as_done(grpc_target: Target, told: int) -> None:
    """The server MUST answer the abort of a running request by saying that it is aborted."""
    _held(grpc_target, Request("gone"), told)
    asserts.equal("the answer", AbortAnswer.ABORTED, _abort(grpc_target, "gone"))


@requirement("OE-ABT-010", "OE-FIN-011", "SMG-ABT-004", needs=(SCRIPTED,))
@TOLD
@CONDUCTS
def test_aborted_stream_ends_in_a_legal_form(grpc_target: Target, told: int, conduct: AbortConduct) -> None:
    """The server MUST end an aborted stream as cancelled, never as stopped, full or without a word."""
    request = Request("gone")
    gate, stream = _held(grpc_target, request, told, SIX.but(abort=conduct))
    _abort(grpc_target, "gone")
    _ended_by_abort(asserts.ended(stream, gate), request, grpc_target.protocol)


@requirement("OE-ABT-010", "SMG-ABT-004", needs=(SCRIPTED,))
@TOLD_MANY
def test_aborted_stream_keeps_what_was_delivered(grpc_target: Target, told: int) -> None:
    """The server MUST NOT add, lose or repeat tokens when it ends an aborted stream."""
    gate, stream = _held(grpc_target, Request("gone"), told)
    _abort(grpc_target, "gone")
    sequences = asserts.ended(stream, gate).sequences
    received = [token for sequence in sequences.values() for token in sequence.tokens]
    asserts.token_ids(tokens(told), received, "an aborted stream")


@requirement("OE-USE-004", "SMG-CMP-008", needs=(SCRIPTED,))
def test_aborted_request_counts_what_came(grpc_target: Target) -> None:
    """The server MUST count the tokens of an aborted request that it has sent, where it counts at all."""
    request = Request("aborted")
    gate, stream = _held(grpc_target, request, 3)
    _abort(grpc_target, "aborted")
    collected = asserts.ended(stream, gate)
    counts = [event.usage for event in (r.event for r in collected.received) if not isinstance(event, TokensEvent)]
    asserts.equal("completion tokens of the end", [3] * len(counts), [usage and usage.completion for usage in counts])


@requirement("OE-ABT-012", "SMG-ABT-008", needs=(SCRIPTED,))
@CONDUCTS
def test_abort_before_the_first_token(grpc_target: Target, conduct: AbortConduct) -> None:
    """The server SHOULD carry out an abort before the first token; the stream has only its end then."""
    request = Request("gone")
    gate, stream = _held(grpc_target, request, 0, SIX.but(abort=conduct))
    asserts.equal("the answer", AbortAnswer.ABORTED, _abort(grpc_target, "gone"))
    collected = asserts.ended(stream, gate)
    asserts.equal("token messages", 0, sum(s.token_messages for s in collected.sequences.values()))
    _ended_by_abort(collected, request, grpc_target.protocol)


@requirement("OE-N-009", "SMG-N-006", needs=(SCRIPTED,))
@pytest.mark.parametrize("told", [0, 2], ids=lambda told: f"told={told}")
@CONDUCTS
def test_abort_ends_every_sequence(grpc_target: Target, told: int, conduct: AbortConduct) -> None:
    """The server SHOULD end all sequences of a request that is aborted by its id."""
    request = Request("gone", num_sequences=2)
    gate, stream = _held(grpc_target, request, told, TWO.but(abort=conduct))
    _abort(grpc_target, "gone")
    _ended_by_abort(asserts.ended(stream, gate), request, grpc_target.protocol)
    asserts.reached(gate.settled(), "the engine lets go of the request")


@requirement("OE-ABT-014", "SMG-ABT-007", needs=(SCRIPTED,))
@TOLD
def test_abort_is_answered_before_the_engine_acts(grpc_target: Target, told: int) -> None:
    """The server SHOULD answer an abort at once while the engine is still busy with it."""
    request = Request("gone")
    gate, stream = _held(grpc_target, request, told, SIX.but(abort=AbortConduct.SLOW))
    asserts.equal("the answer", AbortAnswer.ABORTED, _abort(grpc_target, "gone"))
    gate.release_abort()
    _ended_by_abort(asserts.ended(stream, gate), request, grpc_target.protocol)


# Only the one that it names.


@requirement("OE-ABT-009", "SMG-ABT-003", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("gone", "stays"),
    [("one", "two"), ("r1", "r12"), ("r12", "r1"), ("r1", "R1")],
    ids=["other", "prefix", "longer", "case"],
)
def test_abort_touches_only_its_target(grpc_target: Target, gone: str, stays: str) -> None:
    """The server MUST leave all requests but the one that an abort names alone."""
    request = Request(stays)
    neighbour, stream = _held(grpc_target, request, 2)
    gate, aborted = _held(grpc_target, Request(gone), 1)
    _abort(grpc_target, gone)
    asserts.ended(aborted, gate)
    neighbour.release_all()
    _whole(grpc_target, stream, request, neighbour)
    asserts.engine_aborts(0, neighbour, grpc_target.engine.aborts)


@requirement("OE-ABT-002", "SMG-ABT-002", needs=(SCRIPTED,))
@pytest.mark.parametrize("name", ["nobody", "r", "r12", "R1", "*"], ids=["any", "shorter", "longer", "case", "star"])
def test_abort_of_an_unknown_id(grpc_target: Target, name: str) -> None:
    """The server MUST say that it does not know the id that an abort names."""
    _held(grpc_target, Request("r1"), 1)
    asserts.equal("the answer", AbortAnswer.NOT_FOUND, _abort(grpc_target, name))


@requirement("OE-ABT-009", "SMG-ABT-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("name", ["nobody", "r", "r12", "*"], ids=["any", "shorter", "longer", "star"])
def test_abort_of_an_unknown_id_aborts_nothing(grpc_target: Target, name: str) -> None:
    """The server MUST leave all requests alone when an abort names an unknown id."""
    request = Request("r1")
    gate, stream = _held(grpc_target, request, 1)
    _abort(grpc_target, name, "NOT_FOUND")
    gate.release_all()
    _whole(grpc_target, stream, request, gate)
    asserts.equal("aborts at the engine", [], grpc_target.engine.aborts)


# After the end, and again.


@requirement("OE-ABT-006", needs=(SCRIPTED,))
def test_abort_of_a_finished_request_says_so(grpc_target: Target) -> None:
    """The server MUST answer the abort of a request that has just finished with ALREADY_FINISHED."""
    _whole(grpc_target, grpc_target.play(SIX, Request("over")), Request("over"))
    asserts.equal("the answer", AbortAnswer.ALREADY_FINISHED, _abort(grpc_target, "over"))


@requirement("SMG-ABT-002", needs=(SCRIPTED,))
def test_abort_of_a_finished_request_has_no_success(grpc_target: Target) -> None:
    """The server SHOULD answer the abort of a finished request with an OK response without success."""
    _whole(grpc_target, grpc_target.play(SIX, Request("over")), Request("over"))
    asserts.equal("the answer", AbortAnswer.NOT_FOUND, _abort(grpc_target, "over"))


@requirement("OE-ERR-026", "SMG-ABT-002", needs=(SCRIPTED,))
def test_abort_of_a_finished_request_stays_out_of_the_engine(grpc_target: Target) -> None:
    """The server SHOULD NOT pass the abort of a finished request on to the engine."""
    _whole(grpc_target, grpc_target.play(SIX, Request("over")), Request("over"))
    _abort(grpc_target, "over")
    _whole(grpc_target, grpc_target.play(SIX, Request("later")), Request("later"))
    asserts.equal("aborts at the engine", [], grpc_target.engine.aborts)


@requirement("OE-ABT-007", needs=(SCRIPTED,))
@pytest.mark.parametrize("over", [False, True], ids=["while=ending", "while=over"])
def test_second_abort_is_no_error(grpc_target: Target, over: bool) -> None:
    """The server MUST answer a second abort of an id with OK, as aborted or as finished already."""
    gate, stream = _held(grpc_target, Request("gone"), 1, SIX.but(abort=AbortConduct.SLOW))
    _abort(grpc_target, "gone")
    if over:
        gate.release_abort()
        asserts.ended(stream, gate)
    answer = _abort(grpc_target, "gone")
    legal = (AbortAnswer.ABORTED, AbortAnswer.ALREADY_FINISHED)
    asserts.true("a second abort is answered as aborted or already finished", answer in legal, answer)


@requirement("SMG-ABT-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("over", [False, True], ids=["while=ending", "while=over"])
def test_second_abort_has_no_success(grpc_target: Target, over: bool) -> None:
    """The server SHOULD answer a second abort of an id with an OK response without success."""
    gate, stream = _held(grpc_target, Request("gone"), 1, SIX.but(abort=AbortConduct.SLOW))
    _abort(grpc_target, "gone")
    if over:
        gate.release_abort()
        asserts.ended(stream, gate)
    asserts.equal("the answer", AbortAnswer.NOT_FOUND, _abort(grpc_target, "gone"))


@requirement("OE-ERR-026", "SMG-ABT-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("told", [1, 64], ids=lambda told: f"told={told}")
def test_second_abort_stays_out_of_the_engine(grpc_target: Target, told: int) -> None:
    """The server SHOULD ask the engine only once to stop a request, however often it is aborted."""
    gate, stream = _held(grpc_target, Request("gone"), told, SIX.but(abort=AbortConduct.SLOW))
    for _ in range(3):
        _abort(grpc_target, "gone")
    gate.release_abort()
    asserts.ended(stream, gate)
    _abort(grpc_target, "gone")
    asserts.engine_aborts(1, gate, grpc_target.engine.aborts)


@requirement("OE-ERR-026", "SMG-ABT-006", needs=(SCRIPTED,))
def test_abort_after_a_cancel_is_harmless(grpc_target: Target) -> None:
    """The server SHOULD take an abort of a request that its client has cancelled, to no further effect."""
    gate, stream = _held(grpc_target, Request("gone"), 1)
    stream.cancel()
    asserts.reached(gate.settled(), "the engine lets go of the request")
    _abort(grpc_target, "gone")
    _whole(grpc_target, grpc_target.play(SIX, Request("gone")), Request("gone"))
    asserts.engine_aborts(1, gate, grpc_target.engine.aborts)


@requirement("OE-ERR-026", "SMG-ABT-006", needs=(SCRIPTED,))
def test_cancel_after_an_abort_is_harmless(grpc_target: Target) -> None:
    """The server SHOULD take the cancel of a request that is just being aborted, to no further effect."""
    gate, stream = _held(grpc_target, Request("gone"), 1, SIX.but(abort=AbortConduct.SLOW))
    _abort(grpc_target, "gone")
    stream.cancel()
    gate.release_abort()
    asserts.reached(gate.settled(), "the engine lets go of the request")
    _whole(grpc_target, grpc_target.play(SIX, Request("later")), Request("later"))
    asserts.engine_aborts(1, gate, grpc_target.engine.aborts)


@requirement("OE-ABT-016", needs=(SCRIPTED,))
def test_abort_is_always_answered_with_a_status(grpc_target: Target) -> None:
    """The server SHOULD NOT leave the status of an OK answer to an abort unspecified."""
    gate, stream = _held(grpc_target, Request("gone"), 1, SIX.but(abort=AbortConduct.SLOW))
    answers = [_abort(grpc_target, "gone"), _abort(grpc_target, "gone")]
    gate.release_abort()
    asserts.ended(stream, gate)
    answers += [_abort(grpc_target, "gone"), _abort(grpc_target, "nobody")]
    asserts.equal("answers without a status", 0, answers.count(AbortAnswer.UNSPECIFIED))


# When the engine does not go along.


@requirement("OE-ABT-022", "SMG-ABT-009", needs=(SCRIPTED,))
def test_abort_that_the_engine_refuses_is_not_claimed(grpc_target: Target) -> None:
    """The server SHOULD NOT claim an abort that the engine refuses; the request runs on to its own end."""
    request = Request("stays")
    gate, stream = _held(grpc_target, request, 1, SIX.but(abort=AbortConduct.REFUSE))
    answer = _abort(grpc_target, "stays", "INTERNAL")
    done = (AbortAnswer.ABORTED, AbortAnswer.ALREADY_FINISHED, AbortAnswer.UNSPECIFIED)
    asserts.true("a refused abort is not claimed", answer not in done, answer)
    gate.release_all()
    _whole(grpc_target, stream, request, gate)


@requirement("OE-ABT-013", needs=(SCRIPTED,))
def test_abort_that_crosses_the_end_is_consistent(grpc_target: Target) -> None:
    """The server SHOULD answer ABORTED only if the stream shows it, also when it is about to end."""
    for number in range(RACES):
        request = Request(f"race {number}")
        gate, stream = _held(grpc_target, request, 5)
        gate.release_all()
        if _abort(grpc_target, request.request_id) is AbortAnswer.ABORTED:
            _ended_by_abort(asserts.ended(stream, gate), request, grpc_target.protocol)
        else:
            _whole(grpc_target, stream, request, gate)
