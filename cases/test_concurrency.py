"""Many streams at once: each sees its own output, and none waits for another."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import Script, Token, one_by_one, script
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.targets.base import Target

STREAMS = 64
ROUNDS = 4
CONNECTIONS = pytest.mark.parametrize("connections", [1, 16], ids=lambda count: f"connections={count}")


def _own(stream: int) -> tuple[Token, ...]:
    """Tokens whose ids and text belong to one stream only."""
    return tuple(Token(1000 * (stream + 1) + at, f" s{stream}t{at}".encode()) for at in range(ROUNDS))


def _script(stream: int) -> Script:
    return script(one_by_one(_own(stream)))


def _turn(step: int) -> list[int]:
    """An order of all streams, another one for each step: neighbours are far apart."""
    return [(at * 27 + 11 * step) % STREAMS for at in range(STREAMS)]


@requirement("OE-GEN-019", "SMG-GEN-017", needs=(SCRIPTED,))
@CONNECTIONS
def test_streams_do_not_mix(grpc_target: Target, connections: int) -> None:
    """The server MUST send to each of many streams at once its own output only."""
    clients = [grpc_target.connect() for _ in range(connections)]
    requests = [Request(f"stream-{at}") for at in range(STREAMS)]
    gates = [grpc_target.prepare(request.request_id, _script(at)) for at, request in enumerate(requests)]
    streams = [clients[at % connections].generate(request) for at, request in enumerate(requests)]
    for step in range(ROUNDS):
        for at in _turn(step):
            gates[at].release(1)
        for at in _turn(step + 1):
            came = asserts.tokens_until(streams[at], 1, gates[at])
            asserts.token_ids(_own(at)[step : step + 1], came, f"step {step + 1} of stream {at}")
    for at, request in enumerate(requests):
        expected = course(_script(at), request.parameters())
        asserts.outcome(asserts.ended(streams[at], gates[at]), expected, request, grpc_target.protocol)


@requirement("OE-GEN-019", "SMG-GEN-017", needs=(SCRIPTED,))
@CONNECTIONS
def test_streams_that_all_run_freely_do_not_mix(grpc_target: Target, connections: int) -> None:
    """The server MUST keep streams apart that the engine serves as fast as it can."""
    clients = [grpc_target.connect() for _ in range(connections)]
    requests = [Request(f"free-{at}") for at in range(STREAMS)]
    for at, request in enumerate(requests):
        grpc_target.prepare(request.request_id, _script(at), open=True)
    streams = [clients[at % connections].generate(request) for at, request in enumerate(requests)]
    for at, request in enumerate(requests):
        expected = course(_script(at), request.parameters())
        asserts.outcome(asserts.ended(streams[at]), expected, request, grpc_target.protocol)


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
@pytest.mark.parametrize("connections", [1, 2], ids=lambda count: f"connections={count}")
def test_held_stream_holds_no_other(grpc_target: Target, connections: int) -> None:
    """The server SHOULD send the tokens of one stream while another one waits for its own."""
    clients = [grpc_target.connect() for _ in range(connections)]
    held = grpc_target.prepare("held", _script(0))
    waiting = clients[0].generate(Request("held"))
    held.release(1)
    asserts.tokens_until(waiting, 1, held)
    gate = grpc_target.prepare("quick", _script(1), open=True)
    collected = asserts.ended(clients[-1].generate(Request("quick")), gate)
    asserts.token_ids(_own(1), collected.sequences[0].tokens, "the stream that is not held")
    held.release_all()
    asserts.ended(waiting, held)
