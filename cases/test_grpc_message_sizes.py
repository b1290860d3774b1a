"""Sizes of messages: limits on what is received and sent, and long responses."""

from __future__ import annotations

from typing import Any

import pytest
from hyperframe.frame import DataFrame

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    LibraryTarget,
    client_streaming,
    echoing,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire.connection import RawConnection
from pytest_grpc_conformance.wire.frames import DEFAULT_MAX_FRAME, message
from pytest_grpc_conformance.wire.memory import PeakMemory, PeakUnknown

RECEIVE_LIMIT = "grpc.max_receive_message_length"
SEND_LIMIT = "grpc.max_send_message_length"
DEFAULT_LIMIT = 4 << 20


@requirement("GRPC-MSG-23")
@pytest.mark.parametrize("method", ["Unary", "ClientStream"], ids=["unary", "client-stream"])
@pytest.mark.parametrize(
    ("limit", "size", "passes"),
    [
        pytest.param(None, DEFAULT_LIMIT, True, id="default-exactly"),
        pytest.param(None, DEFAULT_LIMIT + 1, False, id="default-and-one"),
        pytest.param(-1, DEFAULT_LIMIT + 1, True, id="unlimited"),
        pytest.param(1000, 1000, True, id="limit-exactly"),
        pytest.param(1000, 1001, False, id="limit-and-one"),
        pytest.param(0, 0, True, id="zero-empty"),
        pytest.param(0, 1, False, id="zero-and-one"),
    ],
)
def test_receive_limit(grpc_library: LibraryTarget, method: str, limit: int | None, size: int, passes: bool) -> None:
    """The server MUST take messages up to its limit, 4 MiB without one, and refuse longer ones."""
    options = [] if limit is None else [(RECEIVE_LIMIT, limit)]
    request = bytes(size)
    served = grpc_library.serve(echoing(grpc_library.seen), options=options)
    outcome = served.call(method, [request] if method == "ClientStream" else request)
    asserts.equal("the status", "OK" if passes else "RESOURCE_EXHAUSTED", outcome.code)
    sizes = [len(each) for each in grpc_library.seen.values("message")]
    asserts.equal("the sizes of the messages in the handler", [size] if passes else [], sizes)


@requirement("GRPC-MSG-24")
@pytest.mark.parametrize("method", ["Unary", "ClientStream"], ids=["unary", "client-stream"])
def test_too_long_message_is_refused_by_its_prefix(grpc_library: LibraryTarget, method: str) -> None:
    """The server SHOULD refuse a message by its declared length, without waiting for its body."""
    connection = grpc_library.serve(echoing(grpc_library.seen)).connect()
    # A server that waits for the body ends the call at its deadline, which shows that it waited.
    stream = connection.start(path(method), timeout="5S")
    connection.data(stream, message(b"ab", length=0xFFFF_FFFF))
    asserts.ended_with(asserts.answered(connection, stream), "RESOURCE_EXHAUSTED")


@requirement("GRPC-MSG-24")
@pytest.mark.nightly
@pytest.mark.parametrize("method", ["Unary", "ClientStream"], ids=["unary", "client-stream"])
def test_too_long_message_is_not_buffered(grpc_library: LibraryTarget, method: str) -> None:
    """The server SHOULD not keep the body of a message that is declared longer than its limit."""
    size = 128 << 20
    handlers = {"Unary": unary(swallows), "ClientStream": client_streaming(swallows_all)}
    connection = grpc_library.serve(handlers).connect()
    try:
        peak = PeakMemory()
    except PeakUnknown as unknown:
        pytest.skip(str(unknown))
    stream = connection.start(path(method))
    part = bytes(DEFAULT_MAX_FRAME)
    connection.data(stream, message(b"", length=size))
    with asserts.owed("an answer or a window"):
        push(connection, stream, part, size)
    asserts.true("less than 64 MiB are kept of 128", peak.growth() < 64 << 20, f"{peak.growth() >> 20} MiB more")
    asserts.fails(asserts.answered(connection, stream))


async def swallows(request: bytes, context: Any) -> bytes:
    return b""


async def swallows_all(requests: Any, context: Any) -> bytes:
    async for _ in requests:
        pass
    return b""


def push(connection: RawConnection, stream: int, part: bytes, size: int) -> None:
    """Send ``part`` again and again within the windows, until the server has ended the stream or ``size`` is sent."""
    for _ in range(size // len(part)):
        connection.wait(lambda: connection.room(stream) >= len(part) or connection.received.ended(stream), "a window")
        if connection.received.ended(stream):
            return
        connection.data(stream, part)
    connection.data(stream, b"", end_stream=True)


async def sized(request: bytes, context: Any) -> bytes:
    """As many octets as the request says, with a pattern in which a gap shows."""
    return pattern(int(request))


async def first_and_sized(request: bytes, context: Any) -> Any:
    yield b"first"
    yield pattern(int(request))


def pattern(size: int) -> bytes:
    return (b"%07d," % size + bytes(range(251))) * (size // 259) + b"." * (size % 259)


@requirement("GRPC-MSG-25")
@pytest.mark.parametrize("size", [1000, 1001], ids=["limit-exactly", "limit-and-one"])
@pytest.mark.parametrize("method", ["Sized", "Stream"], ids=["unary", "server-stream"])
def test_send_limit(grpc_library: LibraryTarget, method: str, size: int) -> None:
    """The server SHOULD end a call with RESOURCE_EXHAUSTED whose response is longer than its limit."""

    def exchange(target: LibraryTarget) -> Any:
        handlers = {"Sized": unary(sized), "Stream": server_streaming(first_and_sized)}
        outcome = target.serve(handlers, options=[(SEND_LIMIT, 1000)]).call(method, b"%d" % size)
        return outcome.code, [len(each) for each in outcome.messages]

    first = [5] if method == "Stream" else []
    expected = ("OK", [*first, size]) if size == 1000 else ("RESOURCE_EXHAUSTED", first)
    asserts.parity(grpc_library, exchange, expected=expected)


@requirement("GRPC-MSG-26")
@pytest.mark.parametrize(
    "size", [0, 1, 16_384, 5_000_000, 20_000_000], ids=["empty", "octet", "16-KiB", "5-MB", "20-MB"]
)
def test_responses_arrive_intact(grpc_library: LibraryTarget, size: int) -> None:
    """The server MUST deliver responses intact, in frames within the client's SETTINGS_MAX_FRAME_SIZE."""
    connection = grpc_library.serve({"Sized": unary(sized)}).connect()
    stream = connection.call(path("Sized"), b"%d" % size)
    answer = asserts.answered(connection, stream)
    asserts.ended_with(answer, "OK")
    asserts.true("the response arrives intact", answer.data == message(pattern(size)), str(answer))
    frames = [each for each in connection.received.on_stream(stream) if isinstance(each, DataFrame)]
    longest = max(each.flow_controlled_length for each in frames)
    asserts.true("no DATA frame is longer than 16,384", longest <= DEFAULT_MAX_FRAME, f"one of {longest} octets")
