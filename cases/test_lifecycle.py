"""A server that stops lets its streams finish within the grace, takes no new ones, and can start again.

What ``stop`` owes is judged by what grpc.aio does (the GRPC-LIFE rows); new work is refused as OE-ERR-014 says.
"""

from __future__ import annotations

import concurrent.futures
import functools
from typing import TYPE_CHECKING

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import Script, in_steps, one_by_one, pieces, script, tokens
from pytest_grpc_conformance.marker import LIFECYCLE, SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request, Status
from pytest_grpc_conformance.protocols.client import FIXED_WINDOW

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gate import Gate
    from pytest_grpc_conformance.protocols.client import Client
    from pytest_grpc_conformance.protocols.collected import Collected
    from pytest_grpc_conformance.protocols.stream import GenerateStream
    from pytest_grpc_conformance.targets.inprocess import InprocessTarget

FOUR = script(one_by_one(tokens(4)))
TEXT = script(one_by_one(pieces("x" * 30_000, "y" * 45_000)))
IDS = script(in_steps(tokens(8000, start=2**28, text=False), [4000] * 2))
"""Two results, the first less than a window of 64 KiB and both more: by their text, or by their ids and the end."""
HELD = Request("held", max_tokens=100_000)
LONG = 600.0
"""A grace in seconds that no wait of a case lasts."""
SHORT = 0.2
"""A grace in seconds that runs out."""
CROSSINGS = 10
REFUSED = 200
UNREAD = 40
Stop = concurrent.futures.Future[None]


def _held(target: InprocessTarget, client: Client, request: Request, told: int = 1) -> tuple[Gate, GenerateStream]:
    """A running request whose engine is silent after ``told`` tokens."""
    gate = target.prepare(request.request_id, FOUR)
    stream = client.generate(request)
    asserts.reached(gate.submitted(), "the engine has the request")
    gate.release(told)
    asserts.tokens_until(stream, told, gate)
    return gate, stream


def _bulky(target: InprocessTarget) -> Script:
    return TEXT if target.protocol.traits.carries_text else IDS


def _beside(target: InprocessTarget, client: Client) -> None:
    """A stream that does not end, so that the end of the one under test is not that of its connection."""
    _held(target, client, Request("beside"), 0)


def _stopping(target: InprocessTarget, client: Client, grace: float | None) -> Stop:
    """A stop that has begun, which the client knows from the answer to a call that it made after that.

    How a call fails that crosses the message to go elsewhere is not judged (grpcio cancels some); the next one is.
    """
    stopping = target.begin_stop(grace)
    for _ in range(CROSSINGS):
        answer = asserts.done("a health check", client.health, "UNAVAILABLE", "CANCELLED")
        if not isinstance(answer, Status) or answer.code == "UNAVAILABLE":
            break
    return stopping


def _returns(target: InprocessTarget, stopping: Stop, what: str) -> None:
    asserts.done(what, lambda: stopping.result(target.timeout))


def _whole(target: InprocessTarget, collected: Collected, request: Request, told: Script = FOUR) -> None:
    expected = course(told, request.parameters(), target.engine.eos_token_ids)
    asserts.outcome(collected, expected, request, target.protocol)


# Drain.


@requirement("GRPC-LIFE-13", "OE-ERR-014", needs=(SCRIPTED, LIFECYCLE))
@pytest.mark.parametrize("told", [0, 1], ids=lambda told: f"told={told}")
def test_stream_in_flight_finishes_within_the_grace(grpc_target: InprocessTarget, told: int) -> None:
    """The server MUST let a running stream finish with its own status when it stops with a grace."""
    client = grpc_target.client
    _beside(grpc_target, client)
    gate, stream = _held(grpc_target, client, HELD, told)
    _stopping(grpc_target, client, LONG)
    gate.release_all()
    _whole(grpc_target, asserts.ended(stream, gate), HELD)


@requirement("GRPC-LIFE-13", needs=(SCRIPTED, LIFECYCLE))
def test_no_stream_is_lost_within_the_grace(grpc_target: InprocessTarget) -> None:
    """The server MUST let each of ten streams finish when it stops with a grace."""
    client, requests = grpc_target.client, [Request(f"held {number}") for number in range(10)]
    _beside(grpc_target, client)
    held = [_held(grpc_target, client, request) for request in requests]
    _stopping(grpc_target, client, LONG)
    for gate, _ in held:
        gate.release_all()
    for request, (gate, stream) in zip(requests, held, strict=True):
        _whole(grpc_target, asserts.ended(stream, gate), request)


@requirement("GRPC-LIFE-13", needs=(SCRIPTED, LIFECYCLE))
def test_stop_returns_with_the_last_stream(grpc_target: InprocessTarget) -> None:
    """The server MUST return from a stop with a grace once its last stream has ended, and not before."""
    gate, _ = _held(grpc_target, grpc_target.client, HELD)
    stopping = _stopping(grpc_target, grpc_target.client, LONG)
    asserts.true("a stop with a grace waits for the running stream", not stopping.done())
    gate.release_all()
    _returns(grpc_target, stopping, "the return of stop after the last stream")


@requirement("GRPC-LIFE-13", needs=(SCRIPTED, LIFECYCLE))
@pytest.mark.parametrize("grace", [None, LONG], ids=["grace=none", "grace=long"])
def test_stop_without_streams_returns_at_once(grpc_target: InprocessTarget, grace: float | None) -> None:
    """The server MUST return at once from a stop while no call runs, also with open connections."""
    _whole(grpc_target, asserts.ended(grpc_target.play(FOUR, HELD)), HELD)
    _returns(grpc_target, grpc_target.begin_stop(grace), "the return of stop without calls")


@requirement("OE-ERR-014", "GRPC-STATUS-27", "GRPC-LIFE-22", needs=(SCRIPTED, LIFECYCLE))
@pytest.mark.parametrize("same", [True, False], ids=["connection=same", "connection=new"])
def test_new_call_is_refused_while_draining(grpc_target: InprocessTarget, same: bool) -> None:
    """The server MUST refuse new calls as UNAVAILABLE while it stops with a grace.

    It may do so by not taking the connection; a client derives the same status then.
    """
    _held(grpc_target, grpc_target.client, HELD)
    _stopping(grpc_target, grpc_target.client, LONG)
    grpc_target.prepare("new", FOUR, open=True)
    client = grpc_target.client if same else grpc_target.connect()
    asserts.refused(asserts.ended(client.generate(Request("new"))), "UNAVAILABLE")


@requirement("OE-ERR-014", "GRPC-LIFE-22", needs=(SCRIPTED, LIFECYCLE))
def test_new_call_does_not_reach_the_engine_while_draining(grpc_target: InprocessTarget) -> None:
    """The server MUST keep new work from its engine while it stops with a grace."""
    _held(grpc_target, grpc_target.client, HELD)
    _stopping(grpc_target, grpc_target.client, LONG)
    grpc_target.prepare("new", FOUR, open=True)
    asserts.ended(grpc_target.generate(Request("new")))
    asserts.equal("submissions", ["held"], [s.request_id for s in grpc_target.engine.submissions])


@requirement("GRPC-LIFE-14", "GRPC-LIFE-13", needs=(SCRIPTED, LIFECYCLE))
def test_late_reader_gets_everything_within_the_grace(grpc_target: InprocessTarget) -> None:
    """The server MUST deliver the whole of a stream, within the grace, to a client that reads it late.

    The generation is over, but not all of it fits into the client's window. A server that does not care for the rest
    has time to return from its stop while other calls are refused.
    """
    gate = grpc_target.prepare("held", _bulky(grpc_target))
    stream = grpc_target.connect(options=FIXED_WINDOW).generate(HELD)
    gate.release(1)
    asserts.reached(gate.delivered(1), "the server takes a result of the request")
    stopping = _stopping(grpc_target, grpc_target.client, LONG)
    gate.release_all()
    asserts.reached(gate.delivered(2), "the server takes the last result, as there is room for the one before")
    for number in range(REFUSED):
        if not stopping.done():
            asserts.ended(grpc_target.connect().generate(Request(f"refused {number}")))
    _whole(grpc_target, asserts.ended(stream, gate), HELD, _bulky(grpc_target))


# The end of the grace.


@requirement("GRPC-LIFE-12", needs=(SCRIPTED, LIFECYCLE))
@pytest.mark.parametrize("told", [0, 1], ids=lambda told: f"told={told}")
def test_stop_without_grace_ends_streams(grpc_target: InprocessTarget, told: int) -> None:
    """The server MUST end running streams with UNAVAILABLE, and return, when it stops without a grace."""
    gate, stream = _held(grpc_target, grpc_target.client, HELD, told)
    _returns(grpc_target, grpc_target.begin_stop(None), "the return of stop without a grace")
    asserts.transport_ended(asserts.ended(stream, gate), "UNAVAILABLE")


@requirement("GRPC-LIFE-17", needs=(SCRIPTED, LIFECYCLE))
@pytest.mark.parametrize("grace", [0.0, -1.0], ids=["grace=zero", "grace=negative"])
def test_grace_of_nothing_is_none(grpc_target: InprocessTarget, grace: float) -> None:
    """The server MUST take a grace of zero or less for none."""
    gate, stream = _held(grpc_target, grpc_target.client, HELD)
    _returns(grpc_target, grpc_target.begin_stop(grace), "the return of stop without a grace")
    asserts.transport_ended(asserts.ended(stream, gate), "UNAVAILABLE")


@requirement("GRPC-LIFE-15", needs=(SCRIPTED, LIFECYCLE))
def test_stream_ends_with_the_grace(grpc_target: InprocessTarget) -> None:
    """The server MUST end a stream with UNAVAILABLE, and return from the stop, when the grace runs out."""
    gate, stream = _held(grpc_target, grpc_target.client, HELD)
    stopping = grpc_target.begin_stop(SHORT)
    asserts.transport_ended(asserts.ended(stream, gate), "UNAVAILABLE")
    _returns(grpc_target, stopping, "the return of stop after the grace")


@requirement("GRPC-LIFE-20", "GRPC-FAIR-02", needs=(SCRIPTED, LIFECYCLE))
def test_unread_streams_do_not_hold_up_a_stop(grpc_target: InprocessTarget) -> None:
    """The server MUST return from a stop when the grace runs out, however many streams nobody reads.

    Forty of them: more than a server has threads to write them.
    """
    client = grpc_target.connect(options=FIXED_WINDOW)
    for number in range(UNREAD):
        gate = grpc_target.prepare(f"unread {number}", _bulky(grpc_target), open=True)
        client.generate(HELD.but(request_id=f"unread {number}"))
        asserts.reached(gate.delivered(1), "the server takes a result of the request")
    _returns(grpc_target, grpc_target.begin_stop(SHORT), "the return of stop after the grace")


@requirement("GRPC-LIFE-26", "OE-GEN-035", "SMG-GEN-019", needs=(SCRIPTED, LIFECYCLE))
@pytest.mark.parametrize("grace", [None, SHORT], ids=["grace=none", "grace=short"])
def test_stop_stops_the_engine(grpc_target: InprocessTarget, grace: float | None) -> None:
    """The server MUST cancel the handlers of the streams that its stop ends, so that the engine stops too."""
    gate, _ = _held(grpc_target, grpc_target.client, HELD)
    grpc_target.begin_stop(grace)
    asserts.reached(gate.aborted(), "an abort reaches the engine")


@requirement("GRPC-LIFE-18", needs=(SCRIPTED, LIFECYCLE))
def test_shorter_grace_wins(grpc_target: InprocessTarget) -> None:
    """The server MUST cut a long grace short when it is told again to stop, now without one.

    What else would be due in ten minutes is due at once; a tenth of the usual wait tells the two apart.
    """
    gate, stream = _held(grpc_target, grpc_target.client, HELD)
    first = _stopping(grpc_target, grpc_target.client, LONG)
    second = grpc_target.begin_stop(None)
    for what, stopping in (("stop without a grace", second), ("the stop with a long grace", first)):
        asserts.done(f"the return of {what}", functools.partial(stopping.result, grpc_target.timeout / 10))
    asserts.transport_ended(asserts.ended(stream, gate), "UNAVAILABLE")


# Start again.


@requirement("GRPC-LIFE-08", needs=(SCRIPTED, LIFECYCLE))
@pytest.mark.parametrize("grace", [None, LONG], ids=["grace=none", "grace=long"])
def test_port_can_be_had_again(grpc_target: InprocessTarget, grace: float | None) -> None:
    """The server MUST give up its port when it stops, so that a new server can have it at once."""
    address = grpc_target.address
    _whole(grpc_target, asserts.ended(grpc_target.play(FOUR, HELD)), HELD)
    asserts.done("a stop", lambda: grpc_target.stop(grace))
    asserts.done("a start on the same port", grpc_target.start)
    asserts.equal("the address", address, grpc_target.address)
    grpc_target.prepare("held", FOUR, open=True)
    _whole(grpc_target, asserts.ended(grpc_target.connect().generate(HELD)), HELD)


@requirement("OE-GEN-027", "SMG-GEN-010", needs=(SCRIPTED, LIFECYCLE))
def test_new_server_knows_nothing_of_the_old_ones_requests(grpc_target: InprocessTarget) -> None:
    """The server SHOULD serve, once started again, a request with the id of one that its stop has ended."""
    gate, stream = _held(grpc_target, grpc_target.client, HELD)
    asserts.done("a stop", lambda: grpc_target.stop(None))
    asserts.ended(stream, gate)
    asserts.done("a start", grpc_target.start)
    grpc_target.prepare("held", FOUR, open=True)
    _whole(grpc_target, asserts.ended(grpc_target.connect().generate(HELD)), HELD)


@requirement("GRPC-LIFE-24", needs=(LIFECYCLE,))
def test_repeated_stop_returns(grpc_target: InprocessTarget) -> None:
    """The server MUST return from a stop after it has stopped already."""
    for _ in range(3):
        _returns(grpc_target, grpc_target.begin_stop(None), "the return of stop")
