"""A deadline ends a call by the transport's own status, and the engine's work with it; a far one changes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import one_by_one, script, tokens
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.targets.base import Target

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gate import Gate
    from pytest_grpc_conformance.protocols.stream import GenerateStream

SIX = script(one_by_one(tokens(6)))
SOON = 0.4
"""Seconds: long enough for a request to reach the engine on a busy machine, short enough to wait for."""
YEAR = 365 * 24 * 3600.0


def _held(target: Target, request: Request, deadline: float, told: int = 0) -> tuple[Gate, GenerateStream]:
    """A running request with a deadline, whose engine is silent after ``told`` tokens."""
    target.client.wait_connected()
    gate = target.prepare(request.request_id, SIX)
    stream = target.generate(request, deadline=deadline)
    asserts.reached(gate.submitted(), "the engine has the request")
    gate.release(told)
    return gate, stream


def _whole(target: Target, request: Request) -> None:
    """One request from start to end, on an engine that holds nothing back."""
    expected = course(SIX, request.parameters(), target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(target.play(SIX, request)), expected, request, target.protocol)


@requirement("OE-ERR-003", "SMG-ERR-001", needs=(SCRIPTED,))
def test_deadline_ends_a_call_by_its_status(grpc_target: Target) -> None:
    """The server MUST NOT make up an in-band error for a call that ends with DEADLINE_EXCEEDED."""
    gate, stream = _held(grpc_target, Request("late"), SOON, told=2)
    asserts.token_ids(tokens(2), asserts.tokens_until(stream, 2, gate), "the part before the deadline")
    asserts.transport_ended(asserts.ended(stream, gate), "DEADLINE_EXCEEDED")


@requirement("OE-GEN-035", "OE-ERR-026", "SMG-GEN-019", needs=(SCRIPTED,))
def test_deadline_in_silence_stops_the_engine(grpc_target: Target) -> None:
    """The server SHOULD stop the engine's work, once, when the deadline of a request passes in silence."""
    gate, stream = _held(grpc_target, Request("late"), SOON)
    asserts.status(asserts.ended(stream, gate), "DEADLINE_EXCEEDED")
    asserts.reached(gate.settled(), "the engine lets go of the request")
    _whole(grpc_target, Request("later"))
    asserts.engine_aborts(1, gate, grpc_target.engine.aborts)


@requirement("OE-GEN-027", "SMG-GEN-010", needs=(SCRIPTED,))
def test_deadline_frees_the_id(grpc_target: Target) -> None:
    """The server SHOULD serve a new request under the id of one whose deadline has passed in full."""
    request = Request("again")
    gate, stream = _held(grpc_target, request, SOON, told=1)
    asserts.status(asserts.ended(stream, gate), "DEADLINE_EXCEEDED")
    asserts.reached(gate.settled(), "the engine lets go of the request")
    _whole(grpc_target, request)


@requirement("GRPC-DL-19", needs=(SCRIPTED,))
@pytest.mark.parametrize("deadline", [60.0, 30 * 24 * 3600.0, YEAR], ids=["minute", "thirty-days", "year"])
def test_far_deadline_does_not_end_a_call(grpc_target: Target, deadline: float) -> None:
    """The server MUST NOT end a call before its deadline, however far off that is."""
    request = Request("in time")
    gate, stream = _held(grpc_target, request, deadline, told=1)
    asserts.tokens_until(stream, 1, gate)
    gate.release_all()
    expected = course(SIX, request.parameters(), grpc_target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(stream, gate), expected, request, grpc_target.protocol)
