"""A client that leaves takes its work with it: the engine is told once, nobody else notices, the id is free again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import one_by_one, script, side_by_side, tokens
from pytest_grpc_conformance.marker import LIFECYCLE, SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import FinishEvent, Request
from pytest_grpc_conformance.targets.base import Target

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gate import Gate
    from pytest_grpc_conformance.protocols.client import Client
    from pytest_grpc_conformance.protocols.stream import GenerateStream
    from pytest_grpc_conformance.targets.inprocess import InprocessTarget

SIX = script(one_by_one(tokens(6)))
TOLD = pytest.mark.parametrize("told", [0, 1, 5], ids=lambda told: f"told={told}")
TOLD_MANY = pytest.mark.parametrize("told", [0, 1, 5, 64], ids=lambda told: f"told={told}")
BURST = 60


def _held(target: Target, client: Client, request: Request, told: int) -> tuple[Gate, GenerateStream]:
    """A running request whose engine is silent after ``told`` tokens, which the client has."""
    gate = target.prepare(request.request_id, SIX if told < 6 else script(one_by_one(tokens(told + 1))))
    stream = client.generate(request)
    asserts.reached(gate.submitted(), "the engine has the request")
    gate.release(told)
    asserts.tokens_until(stream, told, gate)
    return gate, stream


def _whole(target: Target, client: Client, request: Request) -> None:
    """One request from start to end, on an engine that holds nothing back."""
    target.prepare(request.request_id, SIX, open=True)
    collected = asserts.ended(client.generate(request))
    asserts.outcome(collected, course(SIX, request.parameters(), target.engine.eos_token_ids), request, target.protocol)


@requirement("OE-GEN-035", "SMG-GEN-019", needs=(SCRIPTED,))
@TOLD
def test_cancel_stops_the_engine(grpc_target: Target, told: int) -> None:
    """The server SHOULD stop the engine's work on a request whose client cancels the RPC."""
    gate, stream = _held(grpc_target, grpc_target.client, Request("gone"), told)
    stream.cancel()
    asserts.reached(gate.aborted(), "an abort reaches the engine, which is silent")


@requirement("OE-ERR-026", "SMG-GEN-019", needs=(SCRIPTED,))
@TOLD_MANY
def test_cancel_aborts_once(grpc_target: Target, told: int) -> None:
    """The server SHOULD ask the engine only once to stop a request whose client cancels the RPC."""
    gate, stream = _held(grpc_target, grpc_target.client, Request("gone"), told)
    stream.cancel()
    asserts.reached(gate.settled(), "the engine lets go of the request")
    _whole(grpc_target, grpc_target.client, Request("later"))
    asserts.engine_aborts(1, gate, grpc_target.engine.aborts)


@requirement("OE-GEN-027", "SMG-GEN-010", needs=(SCRIPTED,))
@TOLD_MANY
def test_cancel_frees_the_id(grpc_target: Target, told: int) -> None:
    """The server SHOULD serve a new request under the id of a cancelled one in full.

    OpenEngine leaves open when an id is free again; here the engine has let go of the old request.
    """
    gate, stream = _held(grpc_target, grpc_target.client, Request("again"), told)
    stream.cancel()
    asserts.reached(gate.settled(), "the engine lets go of the request")
    _whole(grpc_target, grpc_target.client, Request("again"))


@requirement("OE-ERR-026", "SMG-GEN-019", needs=(SCRIPTED,))
def test_cancel_after_the_end_does_not_abort(grpc_target: Target) -> None:
    """The server SHOULD NOT ask the engine to stop a request whose end the engine has reported."""
    gate, stream = _held(grpc_target, grpc_target.client, Request("over"), 5)
    gate.release_all()
    while not isinstance(asserts.next_event(stream, gate), FinishEvent):
        pass
    stream.cancel()
    _whole(grpc_target, grpc_target.client, Request("later"))
    asserts.engine_aborts(0, gate, grpc_target.engine.aborts)


@requirement("OE-GEN-035", "SMG-GEN-019", needs=(SCRIPTED,))
@pytest.mark.parametrize("told", [0, 1], ids=lambda told: f"told={told}")
def test_cancel_stops_every_sequence(grpc_target: Target, told: int) -> None:
    """The server SHOULD stop the engine's work on all sequences of a request that its client cancels."""
    gate = grpc_target.prepare("three", script(side_by_side(tokens(4), tokens(6, start=200), tokens(5, start=300))))
    stream = grpc_target.generate(Request("three", num_sequences=3))
    asserts.reached(gate.submitted(), "the engine has the request")
    gate.release(told)
    asserts.tokens_until(stream, 3 * told, gate)
    stream.cancel()
    asserts.reached(gate.settled(), "the engine lets go of the request")
    asserts.equal("requests that the engine still works on", (), grpc_target.engine.in_flight())


@requirement("GRPC-CAN-01", needs=(SCRIPTED,))
@pytest.mark.parametrize("same", [True, False], ids=["connection=same", "connection=other"])
def test_cancel_leaves_other_streams_alone(grpc_target: Target, same: bool) -> None:
    """The server MUST let other streams go on when a client cancels one."""
    request = Request("stays")
    stayed, stream = _held(grpc_target, grpc_target.client, request, 2)
    client = grpc_target.client if same else grpc_target.connect()
    gate, gone = _held(grpc_target, client, Request("gone"), 1)
    gone.cancel()
    asserts.reached(gate.settled(), "the engine lets go of the cancelled request")
    stayed.release_all()
    expected = course(SIX, request.parameters(), grpc_target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(stream, stayed), expected, request, grpc_target.protocol)


@requirement("GRPC-CAN-12", needs=(SCRIPTED,))
def test_cancel_of_many_leaves_other_streams_alone(grpc_target: Target) -> None:
    """The server MUST keep a stream whole through a burst of calls that are cancelled at once."""
    request = Request("stays")
    stayed, stream = _held(grpc_target, grpc_target.client, request, 2)
    for number in range(BURST):
        grpc_target.prepare(f"burst {number}", SIX)
    for gone in [grpc_target.generate(Request(f"burst {number}")) for number in range(BURST)]:
        gone.cancel()
    _whole(grpc_target, grpc_target.client, Request("later"))
    stayed.release_all()
    expected = course(SIX, request.parameters(), grpc_target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(stream, stayed), expected, request, grpc_target.protocol)
    asserts.reached(grpc_target.engine.idle(), "the engine has let go of every request of the burst")


@requirement("GRPC-CAN-02", "OE-GEN-035", "SMG-GEN-019", needs=(SCRIPTED, LIFECYCLE))
@TOLD
def test_lost_connection_stops_the_engine(grpc_target: InprocessTarget, told: int) -> None:
    """The server MUST cancel the calls of a client whose connection is lost, also in silence."""
    relay = grpc_target.relay()
    gate, _ = _held(grpc_target, grpc_target.connect(address=relay.address), Request("gone"), told)
    relay.cut()
    asserts.reached(gate.aborted(), "an abort reaches the engine, which is silent")


@requirement("GRPC-CAN-02", needs=(SCRIPTED, LIFECYCLE))
def test_lost_connection_ends_all_its_calls(grpc_target: InprocessTarget) -> None:
    """The server MUST cancel every call on a connection that is lost, and no call on another one."""
    request = Request("stays")
    stayed, stream = _held(grpc_target, grpc_target.client, request, 2)
    relay = grpc_target.relay()
    client = grpc_target.connect(address=relay.address)
    gates = [_held(grpc_target, client, Request(f"gone {told}"), told)[0] for told in (0, 1, 5)]
    relay.cut()
    for gate in gates:
        asserts.reached(gate.aborted(), "an abort reaches the engine")
    stayed.release_all()
    expected = course(SIX, request.parameters(), grpc_target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(stream, stayed), expected, request, grpc_target.protocol)


@requirement("OE-ERR-026", "SMG-GEN-019", needs=(SCRIPTED, LIFECYCLE))
def test_lost_connection_aborts_once(grpc_target: InprocessTarget) -> None:
    """The server SHOULD ask the engine only once to stop a request whose client's connection is lost."""
    relay = grpc_target.relay()
    gate, _ = _held(grpc_target, grpc_target.connect(address=relay.address), Request("gone"), 1)
    relay.cut()
    asserts.reached(gate.settled(), "the engine lets go of the request")
    _whole(grpc_target, grpc_target.client, Request("later"))
    asserts.engine_aborts(1, gate, grpc_target.engine.aborts)


@requirement("OE-GEN-027", "SMG-GEN-010", needs=(SCRIPTED, LIFECYCLE))
def test_lost_connection_frees_the_id(grpc_target: InprocessTarget) -> None:
    """The server SHOULD serve a request under the id of one whose client's connection was lost in full."""
    relay = grpc_target.relay()
    gate, _ = _held(grpc_target, grpc_target.connect(address=relay.address), Request("again"), 1)
    relay.cut()
    asserts.reached(gate.settled(), "the engine lets go of the request")
    _whole(grpc_target, grpc_target.client, Request("again"))
