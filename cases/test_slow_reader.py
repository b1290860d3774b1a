"""A client that does not read holds up nobody else, costs a bounded amount of memory, and loses nothing.

The slow client keeps HTTP/2's first window of 64 KiB and asks for no message. Its request yields several MiB. A server
that writes as the client reads takes results of the engine until the window and its own buffers are full, and no more;
the engine's gate counts them. The bound is wide on purpose: 2 MiB cover the window, the socket buffers of both ends
(which Linux lets grow to some hundred KiB each on loopback) and a generous buffer in the server. No wait proves the
bound: by the time another stream of 500 steps has come through, a server without one has taken everything.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    Candidate,
    Script,
    Token,
    in_steps,
    one_by_one,
    pieces,
    script,
    tokens,
)
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.protocols.client import FIXED_WINDOW
from pytest_grpc_conformance.targets.base import Target

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gate import Gate
    from pytest_grpc_conformance.protocols.client import Client
    from pytest_grpc_conformance.protocols.stream import GenerateStream

KIB = 1024
BOUND = 2048 * KIB
PIECE = 4 * KIB
CANDIDATES = tuple(Candidate(2_000_000_000 + rank, -rank / 8, rank) for rank in range(1, 101))
CANDIDATE_BYTES = 12
"""What one candidate takes on a wire, at least: five bytes of id, four of score, and their tags."""
QUICK = script(one_by_one(tokens(500)))
STALLED = 4
SOON = 0.4
"""Seconds until a deadline: long enough for a request to reach the engine on a busy machine."""


def _bulky(target: Target, steps: int, size: int = PIECE) -> tuple[Script, Request]:
    """A request with ``steps`` results of at least ``size`` bytes each: as text, else as candidates of tokens."""
    if target.protocol.traits.carries_text:
        return script(one_by_one(pieces(*["x" * size] * steps))), Request("bulky")
    count = -(-size // (CANDIDATE_BYTES * len(CANDIDATES)))
    many = [Token(100 + at, b"", -1.0, 1, CANDIDATES) for at in range(count * steps)]
    return script(in_steps(many, [count] * steps)), Request("bulky", logprobs=len(CANDIDATES))


def _stalled(target: Target, client: Client, told: Script, request: Request) -> tuple[Gate, GenerateStream]:
    """A running request of which the client reads nothing, once the server has begun to send."""
    gate = target.prepare(request.request_id, told, open=True)
    stream = client.generate(request)
    asserts.reached(gate.delivered(1), "the server takes a result of the request")
    return gate, stream


def _quick(target: Target, client: Client) -> None:
    """Another stream from start to end."""
    request = Request("quick")
    target.prepare("quick", QUICK, open=True)
    expected = course(QUICK, request.parameters(), target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(client.generate(request)), expected, request, target.protocol)


@requirement("GRPC-FAIR-03", needs=(SCRIPTED,))
def test_slow_reader_does_not_stop_a_stream_beside_it(grpc_target: Target) -> None:
    """The server MUST carry a stream on while another one on its connection is not read."""
    client = grpc_target.connect(options=FIXED_WINDOW)
    _stalled(grpc_target, client, *_bulky(grpc_target, 200))
    _quick(grpc_target, client)


@requirement("GRPC-FAIR-01", needs=(SCRIPTED,))
def test_slow_readers_do_not_stop_other_clients(grpc_target: Target) -> None:
    """The server MUST carry a client's stream on while several other clients do not read theirs."""
    told, request = _bulky(grpc_target, 200)
    for number in range(STALLED):
        client = grpc_target.connect(options=FIXED_WINDOW)
        _stalled(grpc_target, client, told, request.but(request_id=f"bulky {number}"))
    _quick(grpc_target, grpc_target.client)


@requirement("GRPC-FAIR-04", needs=(SCRIPTED,))
@pytest.mark.parametrize("size", [16 * KIB, 128 * KIB], ids=["size=16K", "size=128K"])
def test_slow_reader_does_not_fill_the_server(grpc_target: Target, size: int) -> None:
    """The server SHOULD bound the bytes that it takes from the engine ahead of a client's reading.

    No document sets a number. 2 MiB and one more result are allowed, of more than 4 MiB.
    """
    told, request = _bulky(grpc_target, 2 * BOUND // size, size)
    client = grpc_target.connect(options=FIXED_WINDOW)
    gate, _ = _stalled(grpc_target, client, told, request)
    _quick(grpc_target, client)
    ahead = (gate.taken - 1) * size
    asserts.true(f"at most {BOUND} bytes are taken ahead of the client", ahead <= BOUND, f"{ahead} bytes")


@requirement("GRPC-FAIR-05", needs=(SCRIPTED,))
def test_slow_reader_gets_everything_once_it_reads(grpc_target: Target) -> None:
    """The server MUST deliver a stream whole and in order to a client that begins to read late."""
    told, request = _bulky(grpc_target, 40)
    gate, stream = _stalled(grpc_target, grpc_target.connect(options=FIXED_WINDOW), told, request)
    _quick(grpc_target, grpc_target.client)
    expected = course(told, request.parameters(), grpc_target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(stream, gate), expected, request, grpc_target.protocol)


@requirement("GRPC-CAN-05", "OE-GEN-035", "SMG-GEN-019", needs=(SCRIPTED,))
def test_cancel_of_an_unread_stream_stops_the_engine(grpc_target: Target) -> None:
    """The server MUST end a call that waits for its client to read as soon as the client cancels it."""
    gate, stream = _stalled(grpc_target, grpc_target.connect(options=FIXED_WINDOW), *_bulky(grpc_target, 200))
    _quick(grpc_target, grpc_target.client)
    stream.cancel()
    asserts.reached(gate.aborted(), "an abort reaches the engine")


@requirement("GRPC-FAIR-02", needs=(SCRIPTED,))
def test_deadline_of_an_unread_stream_stops_the_engine(grpc_target: Target) -> None:
    """The server MUST end a call that waits for its client to read when the call's deadline passes."""
    told, request = _bulky(grpc_target, 200)
    client = grpc_target.connect(options=FIXED_WINDOW)
    client.wait_connected()
    gate = grpc_target.prepare("bulky", told, open=True)
    client.generate(request, deadline=SOON)
    asserts.reached(gate.submitted(), "the engine has the request")
    asserts.reached(gate.aborted(), "an abort reaches the engine")


@requirement("GRPC-FAIR-09", needs=(SCRIPTED,))
def test_slow_readers_that_leave_take_their_streams_along(grpc_target: Target) -> None:
    """The server MUST let go of the streams of clients that did not read once these disconnect."""
    told, request = _bulky(grpc_target, 100)
    clients = [grpc_target.connect(options=FIXED_WINDOW) for _ in range(STALLED)]
    gates = [
        _stalled(grpc_target, client, told, request.but(request_id=f"bulky {number}"))[0]
        for number, client in enumerate(clients)
    ]
    for client in clients:
        client.close()
    for gate in gates:
        asserts.reached(gate.aborted(), "an abort reaches the engine")
    _quick(grpc_target, grpc_target.client)
