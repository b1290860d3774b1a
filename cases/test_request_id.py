"""A request id belongs to one active request: no second one may hurt it, and once it is over the id is free again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    AbortConduct,
    Ending,
    Refusal,
    Script,
    one_by_one,
    script,
    tokens,
)
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request, Status
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import NotApplicable, Target

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gate import Gate
    from pytest_grpc_conformance.protocols.stream import GenerateStream

FOUR = script(one_by_one(tokens(4)))
OTHER = script(one_by_one(tokens(3, start=700)))


def _outcome(target: Target, collected: Collected, told: Script, request: Request) -> None:
    expected = course(told, request.parameters(), target.engine.eos_token_ids)
    asserts.outcome(collected, expected, request, target.protocol)


# How a request comes to its end, leaving its id behind.


def _finish(target: Target, request: Request) -> None:
    asserts.status(asserts.ended(target.play(FOUR, request)), "OK")


def _fail(target: Target, request: Request) -> None:
    asserts.ended(target.play(script(one_by_one(tokens(2)), ending=Ending.FAILURE), request))


def _end_early(target: Target, request: Request) -> None:
    asserts.ended(target.play(script(one_by_one(tokens(2)), ending=Ending.NOTHING), request))


def _refuse(target: Target, request: Request) -> None:
    asserts.refused(asserts.ended(target.play(script(refusal=Refusal()), request)))


def _refuse_invalid(target: Target, request: Request) -> None:
    # Whether this is refused is for other cases; here it is over, and the script is left to the next request.
    asserts.ended(target.play(OTHER, request.but(temperature=-1.0)))


def _told(target: Target, request: Request, told: int) -> tuple[Gate, GenerateStream]:
    """A running request whose engine is silent after ``told`` tokens, which the client has."""
    gate = target.prepare(request.request_id, script(one_by_one(tokens(told + 4))))
    stream = target.generate(request)
    asserts.reached(gate.submitted(), "the engine has the request")
    gate.release(told)
    asserts.tokens_until(stream, told, gate)
    return gate, stream


def _cancel(target: Target, request: Request) -> None:
    gate, stream = _told(target, request, 0)
    stream.cancel()
    asserts.reached(gate.settled(), "the engine lets go of the request")


def _ask_to_abort(target: Target, request_id: str) -> None:
    answer = asserts.done("an abort", lambda: target.client.abort(request_id), "UNIMPLEMENTED")
    if isinstance(answer, Status):
        raise NotApplicable("no-abort", "the server does not offer to abort requests")


def _abort(target: Target, request: Request, told: int = 0) -> None:
    gate, stream = _told(target, request, told)
    _ask_to_abort(target, request.request_id)
    asserts.ended(stream, gate)


ENDS = {
    "finish": _finish,
    "failure": _fail,
    "early-end": _end_early,
    "refusal": _refuse,
    "invalid": _refuse_invalid,
    "cancel": _cancel,
    "abort": _abort,
}
LATE = {"late-abort": functools.partial(_abort, told=64)}
End = Callable[[Target, Request], None]


@requirement("OE-GEN-027", "SMG-GEN-010", needs=(SCRIPTED,))
@pytest.mark.parametrize("end", (ENDS | LATE).values(), ids=[f"after={name}" for name in ENDS | LATE])
def test_id_can_be_used_again(grpc_target: Target, end: End) -> None:
    """The server SHOULD serve a request in full under the id of one that is over, however that ended."""
    request = Request("again")
    end(grpc_target, request)
    _outcome(grpc_target, asserts.ended(grpc_target.play(OTHER, request)), OTHER, request)


@requirement("OE-GEN-027", "SMG-GEN-010", needs=(SCRIPTED,))
@pytest.mark.parametrize("end", ENDS.values(), ids=[f"after={name}" for name in ENDS])
def test_id_can_be_used_again_elsewhere(grpc_target: Target, end: End) -> None:
    """The server SHOULD serve a request under the id of one that is over on another connection as well."""
    request = Request("again")
    end(grpc_target, request)
    grpc_target.prepare("again", OTHER, open=True)
    _outcome(grpc_target, asserts.ended(grpc_target.connect().generate(request)), OTHER, request)


@requirement("OE-GEN-027", "OE-GEN-035", "SMG-GEN-019", needs=(SCRIPTED,))
def test_engine_is_empty_at_rest(grpc_target: Target) -> None:
    """The server SHOULD leave no request with the engine once all its calls are over, however they ended."""
    for turn in range(3):
        for name, end in ENDS.items():
            end(grpc_target, Request(f"{name} {turn}"))
    asserts.reached(grpc_target.engine.idle(), "the engine has let go of every request")


# An id that is taken.


@requirement("OE-GEN-026", "SMG-GEN-018", needs=(SCRIPTED,))
@pytest.mark.parametrize("told", [0, 2], ids=lambda told: f"told={told}")
@pytest.mark.parametrize("same", [True, False], ids=["connection=same", "connection=other"])
def test_second_request_does_not_hurt_the_first(grpc_target: Target, told: int, same: bool) -> None:
    """The server SHOULD keep a request whole whose id a second one claims while it is active.

    The second one is refused; SMG also allows to keep both apart.
    """
    request, client = Request("twin"), grpc_target.client if same else grpc_target.connect()
    gate = grpc_target.prepare("twin", FOUR)
    stream = grpc_target.generate(request)
    asserts.reached(gate.submitted(), "the engine has the first request")
    gate.release(told)
    asserts.tokens_until(stream, told, gate)
    grpc_target.prepare("twin", OTHER, open=True)
    second = asserts.ended(client.generate(request), gate)
    gate.release_all()
    _outcome(grpc_target, asserts.ended(stream, gate), FOUR, request)
    if second.received or second.status.ok:
        _outcome(grpc_target, second, OTHER, request)


@requirement("OE-GEN-026", needs=(SCRIPTED,))
def test_second_request_is_refused(grpc_target: Target) -> None:
    """The server SHOULD refuse a request whose id is active with a non-OK status and no message."""
    gate = grpc_target.prepare("twin", FOUR)
    stream = grpc_target.generate(Request("twin"))
    asserts.reached(gate.submitted(), "the engine has the first request")
    grpc_target.prepare("twin", OTHER, open=True)
    asserts.refused(
        asserts.ended(grpc_target.generate(Request("twin"))), *grpc_target.protocol.traits.duplicate_id_codes
    )
    stream.cancel()


@requirement("OE-GEN-026", needs=(SCRIPTED,))
def test_id_is_taken_while_its_prompt_is_tokenized(grpc_target: Target) -> None:
    """The server SHOULD refuse a second request for an id whose first one is still being tokenized."""
    request = Request("twin", prompt="a text")
    hold = grpc_target.engine.hold_tokenizer()
    for told in (FOUR, OTHER):
        grpc_target.prepare("twin", told, open=True)
    stream = grpc_target.generate(request)
    asserts.reached(hold.entered("a text"), "the tokenizer has the first prompt")
    second = asserts.ended(grpc_target.generate(Request("twin")))
    asserts.refused(second, *grpc_target.protocol.traits.duplicate_id_codes)
    hold.release()
    _outcome(grpc_target, asserts.ended(stream), FOUR, request)


@requirement("OE-GEN-037", needs=(SCRIPTED,))
def test_second_request_does_not_reach_the_engine(grpc_target: Target) -> None:
    """The server SHOULD refuse an id that is active as ALREADY_EXISTS, before the engine sees it."""
    gate = grpc_target.prepare("twin", FOUR)
    grpc_target.generate(Request("twin"))
    asserts.reached(gate.submitted(), "the engine has the first request")
    grpc_target.prepare("twin", OTHER, open=True)
    asserts.refused(asserts.ended(grpc_target.generate(Request("twin"))), "ALREADY_EXISTS")
    asserts.equal("submissions at the engine", 1, len(grpc_target.engine.submissions))


@requirement("OE-GEN-026", "SMG-GEN-018", needs=(SCRIPTED,))
def test_second_request_leaves_the_first_abortable(grpc_target: Target) -> None:
    """The server SHOULD still stop a request by its id after a second one has claimed that id."""
    gate = grpc_target.prepare("twin", FOUR)
    stream = grpc_target.generate(Request("twin"))
    asserts.reached(gate.submitted(), "the engine has the first request")
    grpc_target.prepare("twin", OTHER, open=True)
    asserts.ended(grpc_target.generate(Request("twin")))
    _ask_to_abort(grpc_target, "twin")
    asserts.reached(gate.aborted(), "an abort reaches the engine")
    asserts.ended(stream, gate)


# Ids that look alike, and clean-up that comes late.


@requirement("OE-GEN-019", "SMG-GEN-017", needs=(SCRIPTED,))
@pytest.mark.parametrize(
    ("one", "other"),
    [("r1", "r12"), ("r12", "r1"), ("r1", "R1"), ("r1", "r1 "), ("\u00e9", "e\u0301")],
    ids=["prefix", "longer", "case", "blank", "normal-form"],
)
def test_ids_that_look_alike_are_different(grpc_target: Target, one: str, other: str) -> None:
    """The server MUST keep requests apart whose ids differ in any way, also when one of them is cancelled."""
    gone = grpc_target.prepare(one, OTHER)
    stays = grpc_target.prepare(other, FOUR)
    cancelled = grpc_target.generate(Request(one))
    stream = grpc_target.generate(Request(other))
    for gate in (gone, stays):
        asserts.reached(gate.submitted(), "the engine has both requests")
    cancelled.cancel()
    asserts.reached(gone.settled(), "the engine lets go of the cancelled request")
    stays.release_all()
    _outcome(grpc_target, asserts.ended(stream, stays), FOUR, Request(other))


@requirement("OE-GEN-027", "OE-ERR-025", "SMG-GEN-017", needs=(SCRIPTED,))
def test_late_end_does_not_reach_the_next_request(grpc_target: Target) -> None:
    """The server SHOULD keep a late result of a cancelled request away from the next one with its id.

    The engine lets go of the first only after the second has begun. A server may refuse the second until then.
    """
    request = Request("again")
    first = grpc_target.prepare("again", OTHER.but(abort=AbortConduct.SLOW))
    gone = grpc_target.generate(request)
    asserts.reached(first.submitted(), "the engine has the first request")
    gone.cancel()
    asserts.reached(first.aborted(), "an abort reaches the engine")
    # A call in between gives a server time to be done with the first, so that it need not refuse the second.
    asserts.done("a health check", grpc_target.client.health)
    second = grpc_target.prepare("again", FOUR)
    stream = grpc_target.generate(request)
    second.release(2)
    asserts.answered(stream, first, second)
    first.release_abort()
    asserts.reached(first.settled(), "the engine lets go of the first request")
    second.release_all()
    collected = asserts.ended(stream, first, second)
    if collected.received or collected.status.ok:
        _outcome(grpc_target, collected, FOUR, request)


@requirement("OE-GEN-003", "SMG-GEN-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("length", [65, 257, 1025], ids=lambda length: f"length={length}")
def test_long_id_is_repeated_whole(grpc_target: Target, length: int) -> None:
    """The server MUST repeat the whole request id on every message, however long it is."""
    request = Request("i" * length)
    asserts.ordered(
        asserts.ended(grpc_target.play(script(one_by_one(tokens(2))), request)), request, grpc_target.protocol
    )
