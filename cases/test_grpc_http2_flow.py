"""HTTP/2: flow control in both directions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hyperframe.frame import DataFrame, SettingsFrame

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    ECHO,
    LibraryTarget,
    bidi,
    client_streaming,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire.connection import RawConnection
from pytest_grpc_conformance.wire.frames import DEFAULT_MAX_FRAME, DEFAULT_WINDOW, ErrorCode, Setting, message

ECHOES = path("Echo")
OPTIONS = (("grpc.http2.max_ping_strikes", 0), ("grpc.max_receive_message_length", -1))
LARGEST = (1 << 31) - 1
MEBIBYTE = 1 << 20
UPLOAD = 12_000_000
OUTPUT = bytes(range(256)) * 12


def stalled(library: LibraryTarget, output: bytes, **options: Any) -> tuple[RawConnection, int]:
    """A call whose one message of output waits for the windows that the case grants."""

    async def streams(request: bytes, context: Any) -> AsyncIterator[bytes]:
        yield output

    served = library.serve({"Streams": server_streaming(streams), "Echo": ECHO}, options=OPTIONS)
    connection = served.connect(grants=False, **options)
    return connection, connection.call(path("Streams"))


def sent(connection: RawConnection, *streams: int) -> int:
    """Octets of DATA on some streams as flow control counts them, or on all."""
    return sum(
        frame.flow_controlled_length
        for frame in connection.received.frames
        if isinstance(frame, DataFrame) and (not streams or frame.stream_id in streams)
    )


def exactly(connection: RawConnection, allowed: int, *streams: int) -> None:
    """The server sends what the windows allow by now, to the byte, and no more."""
    with asserts.owed(f"{allowed} octets of DATA, which the windows allow"):
        connection.wait(lambda: sent(connection, *streams) >= allowed, f"{allowed} octets")
        connection.fence()
    asserts.equal("octets of DATA", allowed, sent(connection, *streams))


def complete(connection: RawConnection, stream: int, output: bytes) -> None:
    """The call ends with all of its output."""
    answer = asserts.answered(connection, stream)
    asserts.ended_with(answer, "OK")
    asserts.true("the output is complete and in order", answer.payloads == (output,), str(answer))


@requirement("GRPC-H2-24")
@pytest.mark.parametrize("initial", [0, 1, 1_000], ids=lambda size: f"window={size}")
def test_stream_window_binds(grpc_library: LibraryTarget, initial: int) -> None:
    """The server MUST NOT send more DATA on a stream than its window allows, to the byte."""
    connection, stream = stalled(grpc_library, OUTPUT, settings={Setting.INITIAL_WINDOW_SIZE: initial})
    with asserts.owed("response headers, which no window holds back"):
        connection.wait_headers(stream)
    allowed = initial
    exactly(connection, allowed)
    for more in (1, 700):
        connection.window(stream, more)
        allowed += more
        exactly(connection, allowed)
    connection.window(stream, MEBIBYTE)
    complete(connection, stream, OUTPUT)


@requirement("GRPC-H2-24")
def test_connection_window_binds(grpc_library: LibraryTarget) -> None:
    """The server MUST NOT send more DATA on all streams together than the connection's window allows."""
    output = bytes(40_000)
    connection, first = stalled(grpc_library, output, settings={Setting.INITIAL_WINDOW_SIZE: MEBIBYTE})
    second = connection.call(path("Streams"))
    allowed = DEFAULT_WINDOW
    exactly(connection, allowed)
    for more in (1, 1_000):
        connection.window(0, more)
        allowed += more
        exactly(connection, allowed)
    connection.window(0, MEBIBYTE)
    for stream in (first, second):
        complete(connection, stream, output)


@requirement("GRPC-H2-25")
def test_larger_initial_window_opens_streams(grpc_library: LibraryTarget) -> None:
    """The server MUST send on in a stalled stream once SETTINGS widens the initial window."""
    connection, stream = stalled(grpc_library, OUTPUT, settings={Setting.INITIAL_WINDOW_SIZE: 100})
    exactly(connection, 100)
    for size in (101, 1_500):
        connection.settings({Setting.INITIAL_WINDOW_SIZE: size})
        exactly(connection, size)
    connection.settings({Setting.INITIAL_WINDOW_SIZE: MEBIBYTE})
    complete(connection, stream, OUTPUT)


@requirement("GRPC-H2-25")
def test_smaller_initial_window_makes_windows_negative(grpc_library: LibraryTarget) -> None:
    """The server MUST count a window below 0 after SETTINGS narrows it, and lose nothing."""
    connection, stream = stalled(grpc_library, OUTPUT, settings={Setting.INITIAL_WINDOW_SIZE: 1_000})
    exactly(connection, 1_000)
    connection.settings({Setting.INITIAL_WINDOW_SIZE: 200})  # The window is -800.
    with asserts.owed("the acknowledgement of SETTINGS"):
        connection.wait(lambda: settings_acknowledged(connection) >= 2, "the acknowledgement of SETTINGS")
    connection.window(stream, 800)
    exactly(connection, 1_000)
    connection.window(stream, 7)
    exactly(connection, 1_007)
    connection.window(stream, MEBIBYTE)
    complete(connection, stream, OUTPUT)


def settings_acknowledged(connection: RawConnection) -> int:
    """How many SETTINGS the server has acknowledged."""
    return sum(isinstance(f, SettingsFrame) and "ACK" in f.flags for f in connection.received.frames)


def open_stream(library: LibraryTarget) -> tuple[RawConnection, int]:
    """A stream with headers only, on which the server has nothing to send."""
    connection = library.serve({"Echo": ECHO}, options=OPTIONS).connect()
    return connection, connection.start(ECHOES)


def window_error(connection: RawConnection, stream: int | None, code: ErrorCode) -> None:
    """The stream is reset with the code, or (without a stream only this) the connection ends for it."""
    with asserts.owed("the end of the stream or of the connection"):
        later = connection.call(ECHOES)
        connection.wait(
            lambda: connection.closed or connection.received.ended(later), "a later answer, or the connection's end"
        )
    if stream is None or connection.so_far(stream).reset != code:
        asserts.connection_error(connection, code, probe=ECHOES)


@requirement("GRPC-H2-20")
@pytest.mark.parametrize("where", ["stream", "connection"])
def test_window_update_of_zero_is_an_error(grpc_library: LibraryTarget, where: str) -> None:
    """The server MUST treat a WINDOW_UPDATE of 0 as an error, of the stream or of the connection."""
    connection, stream = open_stream(grpc_library)
    connection.window(stream if where == "stream" else 0, 0)
    window_error(connection, stream if where == "stream" else None, ErrorCode.PROTOCOL_ERROR)


@requirement("GRPC-H2-20")
@pytest.mark.parametrize("where", ["stream", "connection", "settings"])
def test_window_past_the_largest_is_an_error(grpc_library: LibraryTarget, where: str) -> None:
    """The server MUST treat a window above 2^31-1 as a FLOW_CONTROL_ERROR."""
    connection, stream = open_stream(grpc_library)
    if where == "settings":
        connection.window(stream, LARGEST - DEFAULT_WINDOW)  # The largest window there may be.
        connection.settings({Setting.INITIAL_WINDOW_SIZE: DEFAULT_WINDOW + 1})
    else:
        connection.window(stream if where == "stream" else 0, LARGEST - DEFAULT_WINDOW + 1)
    window_error(connection, stream if where == "stream" else None, ErrorCode.FLOW_CONTROL_ERROR)


@requirement("GRPC-H2-20")
def test_largest_windows_are_accepted(grpc_library: LibraryTarget) -> None:
    """The server MUST accept windows of 2^31-1, of a stream and of the connection."""
    connection, stream = open_stream(grpc_library)
    connection.window(stream, LARGEST - DEFAULT_WINDOW)
    connection.window(0, LARGEST - DEFAULT_WINDOW)
    connection.send_message(stream, b"large", end_stream=True)
    asserts.ended_with(asserts.answered(connection, stream), "OK")


async def _length(request: bytes, context: Any) -> bytes:
    return b"%d" % len(request)


async def _lengths(requests: AsyncIterator[bytes], context: Any) -> bytes:
    return b"%d" % sum([len(request) async for request in requests])


LENGTH = {"Unary": unary(_length), "Streaming": client_streaming(_lengths)}


@requirement("GRPC-H2-26")
@pytest.mark.parametrize("method", list(LENGTH), ids=str.lower)
def test_large_upload_completes(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST give back the windows of a request that it reads, so that 12 MB come through."""
    connection = grpc_library.serve(LENGTH, options=OPTIONS).connect()
    stream = connection.start(path(method))
    with asserts.owed("room in the windows for an upload of 12 MB"):
        connection.send_message(stream, bytes(UPLOAD), end_stream=True)
    answer = asserts.answered(connection, stream)
    asserts.ended_with(answer, "OK")
    asserts.equal("the octets that the handler got", (b"%d" % UPLOAD,), answer.payloads)


@requirement("GRPC-H2-26")
def test_large_upload_of_a_stock_client_completes(grpc_library: LibraryTarget) -> None:
    """The server MUST take a message of 12 MB from a stock client, once its limit is raised."""
    served = grpc_library.serve(LENGTH, options=OPTIONS)
    for method in LENGTH:
        request = bytes(UPLOAD) if method == "Unary" else [bytes(UPLOAD)]
        outcome = served.call(method, request, streaming=False)
        asserts.equal("the outcome", ("OK", (b"%d" % UPLOAD,)), (outcome.code, outcome.messages))


@requirement("GRPC-H2-26")
def test_unread_upload_stalls_no_other_stream(grpc_library: LibraryTarget) -> None:
    """The server MUST serve other streams of a connection while a handler leaves an upload unread."""

    async def reads_nothing(requests: Any, context: Any) -> AsyncIterator[bytes]:
        grpc_library.seen.note("runs")
        await asyncio.Event().wait()
        yield b""

    served = grpc_library.serve({"Unread": bidi(reads_nothing), "Echo": ECHO}, options=OPTIONS)
    connection = served.connect()
    stream = connection.start(path("Unread"))
    asserts.seen(grpc_library, "runs")
    fill(connection, stream, 16 * MEBIBYTE)
    for _ in range(3):
        with asserts.owed("room in the connection's window for a call beside an unread upload"):
            answer = connection.unary(ECHOES, bytes(1_000))
        asserts.ended_with(answer, "OK")


def fill(connection: RawConnection, stream: int, most: int) -> None:
    """Send messages until a window is shut, or the server has granted ``most`` octets."""
    left = most
    while left > 0:
        size = min(connection.room(stream), left, DEFAULT_MAX_FRAME)
        if size < 6:
            with asserts.owed("the acknowledgement of a PING"):
                connection.fence()  # What the server grants has come.
            if connection.room(stream) < 6:
                return
            continue
        connection.data(stream, message(bytes(size - 5)))
        left -= size
