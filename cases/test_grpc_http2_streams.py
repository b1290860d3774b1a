"""HTTP/2: streams, their identifiers and states, how many there may be, and how a connection ends with GOAWAY."""

from __future__ import annotations

import asyncio
import functools
import struct
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from hyperframe.frame import RstStreamFrame

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, bidi, path, server_streaming, unary
from pytest_grpc_conformance.wire import stock
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import RawConnection
from pytest_grpc_conformance.wire.frames import DEFAULT_MAX_FRAME, ErrorCode, Flag, Kind, Setting

ECHOES = path("Echo")
MANY_PINGS = (("grpc.http2.max_ping_strikes", 0),)
LARGEST = (1 << 31) - 1
NO_REFERENCE = bytes([0x83, 0x86, 0x84])
"""A header block of three entries of the static table, which leaves no trace in any table."""
PRIORITY = struct.pack(">IB", 0, 15)


def connected(library: LibraryTarget) -> RawConnection:
    """A connection to a server that echoes."""
    return library.serve({"Echo": ECHO}, options=MANY_PINGS).connect()


def releasing(target: LibraryTarget) -> tuple[asyncio.Event, Any]:
    """An event, and a unary handler that notes its request and waits for the event."""
    released = asyncio.Event()

    async def waits(request: bytes, context: Any) -> bytes:
        target.seen.note("runs", request)
        await released.wait()
        return request

    return released, unary(waits)


def release(target: LibraryTarget, released: asyncio.Event) -> None:
    """Let the waiting handlers go on."""

    async def done() -> None:
        released.set()

    target.run(done())


@requirement("GRPC-H2-16")
@pytest.mark.parametrize(
    ("kind", "flags", "stream", "payload"),
    [
        pytest.param(Kind.DATA, Flag.NONE, 0, b"x", id="data"),
        pytest.param(Kind.HEADERS, Flag.END_HEADERS, 0, NO_REFERENCE, id="headers"),
        pytest.param(Kind.RST_STREAM, Flag.NONE, 0, bytes(4), id="reset"),
        pytest.param(Kind.PRIORITY, Flag.NONE, 0, PRIORITY, id="priority"),
        pytest.param(Kind.GOAWAY, Flag.NONE, 1, bytes(8), id="goaway"),
    ],
)
def test_frame_on_the_wrong_stream_ends_the_connection(
    grpc_library: LibraryTarget, kind: Kind, flags: Flag, stream: int, payload: bytes
) -> None:
    """The server MUST treat a stream's frame on stream 0, and GOAWAY on a stream, as a connection error."""
    connection = connected(grpc_library)
    connection.frame(kind, flags, stream, payload)
    asserts.connection_error(connection, ErrorCode.PROTOCOL_ERROR, probe=ECHOES)


@requirement("GRPC-H2-17")
@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        pytest.param(Kind.DATA, b"x", id="data"),
        pytest.param(Kind.WINDOW_UPDATE, b"\0\0\0\1", id="window-update"),
        pytest.param(Kind.RST_STREAM, bytes(4), id="reset"),
    ],
)
def test_frame_on_an_idle_stream_ends_the_connection(grpc_library: LibraryTarget, kind: Kind, payload: bytes) -> None:
    """The server MUST treat a frame on an idle stream as a connection error."""
    connection = connected(grpc_library)
    connection.frame(kind, 0, 99, payload)
    # DATA there is also called a stream closed by section 6.1.
    codes = (ErrorCode.PROTOCOL_ERROR, *((ErrorCode.STREAM_CLOSED,) if kind is Kind.DATA else ()))
    asserts.connection_error(connection, *codes, probe=ECHOES)


@requirement("GRPC-H2-17")
@pytest.mark.parametrize("stream", [2, 3], ids=["even", "lower-than-one-before"])
def test_unexpected_stream_identifier_ends_the_connection(grpc_library: LibraryTarget, stream: int) -> None:
    """The server MUST treat an even or a lower stream identifier as a connection error."""
    connection = connected(grpc_library)
    for _ in range(2):
        connection.new_stream()
    asserts.still_serves(connection, ECHOES)
    connection.frame(Kind.HEADERS, Flag.END_HEADERS, stream, NO_REFERENCE)
    asserts.connection_error(connection, ErrorCode.PROTOCOL_ERROR, ErrorCode.STREAM_CLOSED, probe=ECHOES)


@requirement("GRPC-H2-18")
def test_data_after_end_stream_is_refused(grpc_library: LibraryTarget) -> None:
    """The server MUST treat DATA after END_STREAM as a STREAM_CLOSED error of stream or connection."""
    _, waits = releasing(grpc_library)
    connection = grpc_library.serve({"Waits": waits, "Echo": ECHO}, options=MANY_PINGS).connect()
    stream = connection.call(path("Waits"))
    asserts.seen(grpc_library, "runs")
    connection.data(stream, b"more")
    with asserts.owed("a STREAM_CLOSED error"):
        later = connection.call(ECHOES, b"later")
        connection.wait(
            lambda: connection.closed or connection.received.ended(stream) or connection.received.ended(later),
            "the end of the stream or of the connection",
        )
    if connection.so_far(stream).reset != ErrorCode.STREAM_CLOSED:
        asserts.connection_error(connection, ErrorCode.STREAM_CLOSED, probe=ECHOES)


@requirement("GRPC-H2-18")
def test_late_frames_on_a_closed_stream_are_ignored(grpc_library: LibraryTarget) -> None:
    """The server MUST ignore RST_STREAM, WINDOW_UPDATE and PRIORITY on a stream that has just closed."""
    connection = connected(grpc_library)
    stream = connection.call(ECHOES, b"first")
    asserts.ended_with(asserts.answered(connection, stream), "OK")
    connection.window(stream, 100)
    connection.frame(Kind.PRIORITY, 0, stream, PRIORITY)
    connection.reset(stream)
    asserts.still_serves(connection, ECHOES)


@requirement("GRPC-H2-19")
@pytest.mark.parametrize("where", ["idle-stream", "open-stream"])
def test_push_promise_ends_the_connection(grpc_library: LibraryTarget, where: str) -> None:
    """The server MUST treat PUSH_PROMISE of a client as a connection error."""
    connection = connected(grpc_library)
    stream = connection.start(ECHOES) if where == "open-stream" else connection.new_stream()
    connection.frame(Kind.PUSH_PROMISE, Flag.END_HEADERS, stream, struct.pack(">I", 2) + NO_REFERENCE)
    asserts.connection_error(connection, ErrorCode.PROTOCOL_ERROR, probe=ECHOES)


@requirement("GRPC-H2-19")
def test_server_never_pushes(grpc_library: LibraryTarget) -> None:
    """The server MUST NOT push, though the client permits it."""

    async def counts(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for number in range(3):
            yield b"%d" % number

    served = grpc_library.serve({"Counts": server_streaming(counts), "Echo": ECHO})
    connection = served.connect(settings={Setting.ENABLE_PUSH: 1})
    asserts.ended_with(asserts.answered(connection, connection.call(path("Counts"))), "OK")
    asserts.still_serves(connection, ECHOES)
    kinds = {type(frame).__name__ for frame in connection.received.frames}
    even = sorted({frame.stream_id for frame in connection.received.frames if frame.stream_id % 2 == 0})
    asserts.equal("PUSH_PROMISE, and even streams with frames", (False, [0]), ("PushPromiseFrame" in kinds, even))


def refused(connection: RawConnection, stream: int) -> None:
    """The stream gets first one of the two errors that RFC 9113, section 5.1.2, leaves to choose from."""
    answer = asserts.answered(connection, stream)
    codes = [f.error_code for f in connection.received.on_stream(stream) if isinstance(f, RstStreamFrame)]
    fits = codes[:1] in ([ErrorCode.REFUSED_STREAM], [ErrorCode.PROTOCOL_ERROR]) and not answer.blocks
    asserts.true("the stream beyond the limit is refused", fits, str(answer))


@requirement("GRPC-H2-27")
def test_streams_beyond_the_limit_are_refused(grpc_library: LibraryTarget) -> None:
    """The server MUST announce its limit, refuse the stream beyond it, and accept again once one ends."""
    released, waits = releasing(grpc_library)
    options = (*MANY_PINGS, ("grpc.max_concurrent_streams", 2))
    connection = grpc_library.serve({"Waits": waits, "Echo": ECHO}, options=options).connect()
    with asserts.owed("SETTINGS"):
        connection.wait(connection.received.settings, "the server's settings")
        connection.fence()
    announced = connection.received.settings().get(Setting.MAX_CONCURRENT_STREAMS)
    asserts.equal("the announced MAX_CONCURRENT_STREAMS", 2, announced)
    open_streams = [connection.call(path("Waits"), b"%d" % number) for number in range(2)]
    asserts.seen(grpc_library, "runs", count=2)
    refused(connection, connection.call(path("Waits"), b"refused"))
    release(grpc_library, released)
    for stream in open_streams:
        asserts.ended_with(asserts.answered(connection, stream), "OK")
    asserts.still_serves(connection, ECHOES)
    asserts.equal("the requests that were processed", [b"0", b"1"], sorted(grpc_library.seen.values("runs")))


@requirement("GRPC-H2-28")
def test_stock_client_waits_for_a_free_stream(grpc_library: LibraryTarget) -> None:
    """The server MUST complete the calls that a stock client queues for `grpc.max_concurrent_streams`."""

    def exchange(target: LibraryTarget) -> Any:
        released, waits = releasing(target)
        served = target.serve({"Waits": waits}, options=[("grpc.max_concurrent_streams", 1)])
        channel: Any = served.channel()
        method = channel.unary_unary(path("Waits"))
        first = method.future(b"first", timeout=target.timeout)
        target.seen.wait("runs", target.timeout)
        others = [method.future(b"queued", timeout=target.timeout) for _ in range(3)]
        held = target.seen.values("runs")
        release(target, released)
        return held, [outcome(running) for running in (first, *others)]

    expected = ([b"first"], [("OK", b"first"), *[("OK", b"queued")] * 3])
    asserts.parity(grpc_library, exchange, expected=expected)


def outcome(running: Any) -> tuple[str, bytes]:
    """The code of a stock call, and its message."""
    try:
        return "OK", running.result()
    except grpc.RpcError as error:
        return stock.outcome(error, ()).code, b""


@requirement("GRPC-H2-29")
def test_thousand_streams_on_a_connection(grpc_library: LibraryTarget) -> None:
    """The server SHOULD carry 1,000 streams on a connection, and unary calls beside them."""

    def exchange(target: LibraryTarget) -> Any:
        released, waits = releasing(target)
        channel: Any = target.serve({"Waits": waits, "Echo": ECHO}).channel()
        open_calls = [channel.unary_unary(path("Waits")).future(b"w", timeout=3 * target.timeout) for _ in range(1_000)]
        target.seen.wait("runs", target.timeout, count=1_000)
        beside = [stock.call(channel, ECHOES, b"beside", timeout=target.timeout).messages for _ in range(5)]
        release(target, released)
        return beside, {outcome(running) for running in open_calls}

    asserts.parity(grpc_library, exchange, expected=([(b"beside",)] * 5, {("OK", b"w")}))


@requirement("GRPC-H2-30")
@pytest.mark.parametrize("method", ["Bidi", "Unknown"])
def test_early_end_resets_the_stream(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST follow trailers that come before END_STREAM by RST_STREAM(NO_ERROR)."""
    connection, stream, answer = ended_early(grpc_library, method)
    asserts.ended_with(answer, "OK" if method == "Bidi" else "UNIMPLEMENTED")
    with asserts.owed("RST_STREAM after the trailers"):
        connection.wait(lambda: connection.so_far(stream).reset is not None, "RST_STREAM")
    asserts.equal("the code of RST_STREAM", ErrorCode.NO_ERROR, connection.so_far(stream).reset)


@requirement("GRPC-H2-30")
@pytest.mark.parametrize("method", ["Bidi", "Unknown"])
def test_data_after_an_early_end_does_no_harm(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST take DATA that was on its way when it ended the stream, and account for it."""
    connection, stream, _ = ended_early(grpc_library, method)
    for _ in range(20):  # Four times what the windows of a connection hold at first: they are given back.
        connection.frame(Kind.DATA, 0, stream, bytes(DEFAULT_MAX_FRAME - 1))
        asserts.still_serves(connection, ECHOES)


def ended_early(library: LibraryTarget, method: str) -> tuple[RawConnection, int, Answer]:
    """A call that the server has ended while the client's side is open."""

    async def returns(requests: Any, context: Any) -> AsyncIterator[bytes]:
        return
        yield b""

    connection = library.serve({"Bidi": bidi(returns), "Echo": ECHO}).connect()
    stream = connection.start(path(method))
    return connection, stream, asserts.answered(connection, stream)


def last_ids(connection: RawConnection) -> list[int]:
    """The last stream identifiers that GOAWAY frames announced."""
    return [frame.last_stream_id for frame in connection.received.goaways()]


def announced_end(connection: RawConnection) -> bool:
    """Whether GOAWAY comes, though a call still runs, before a later call is refused for the stop: then wait for its
    real last stream.

    A later call that still succeeds came before the stop had reached its connection.
    """

    def over(stream: int) -> bool:
        return bool(last_ids(connection)) or connection.received.ended(stream)

    with asserts.owed("GOAWAY, or the refusal of a later call"):
        for _ in range(100):
            later = connection.call(ECHOES)
            connection.wait(functools.partial(over, later), "either")
            if last_ids(connection) or connection.so_far(later).status != 0:
                break
        if not last_ids(connection):
            connection.fence()
        if last_ids(connection):
            connection.wait(lambda: min(last_ids(connection)) < LARGEST, "GOAWAY with the real last stream")
    return bool(last_ids(connection))


@requirement("GRPC-H2-32")
def test_stop_sends_goaway_at_once(grpc_library: LibraryTarget) -> None:
    """The server MUST send GOAWAY(NO_ERROR) on each connection as soon as it begins a graceful stop."""
    released, waits = releasing(grpc_library)
    served = grpc_library.serve({"Waits": waits, "Echo": ECHO}, options=MANY_PINGS)
    busy, idle = served.connect(), served.connect()
    stream = busy.call(path("Waits"), b"at work")
    asserts.seen(grpc_library, "runs")
    asserts.still_serves(idle, ECHOES)
    served.begin_stop(3 * grpc_library.timeout)
    for connection in (busy, idle):
        asserts.true("GOAWAY comes while a call still runs", announced_end(connection), "calls are refused without it")
        codes = {frame.error_code for frame in connection.received.goaways()}
        asserts.equal("the codes of GOAWAY", {ErrorCode.NO_ERROR}, codes)
        asserts.equal("last streams never rise", sorted(last_ids(connection), reverse=True), last_ids(connection))
    release(grpc_library, released)
    asserts.ended_with(asserts.answered(busy, stream), "OK")


@requirement("GRPC-H2-33")
def test_streams_above_the_last_one_are_not_processed(grpc_library: LibraryTarget) -> None:
    """The server MUST complete the streams up to GOAWAY's last one, and process none above it."""
    released, waits = releasing(grpc_library)
    served = grpc_library.serve({"Waits": waits, "Echo": ECHO}, options=MANY_PINGS)
    connection = served.connect()
    stream = connection.call(path("Waits"), b"at work")
    asserts.seen(grpc_library, "runs")
    stopped = served.begin_stop(3 * grpc_library.timeout)
    announced = announced_end(connection)
    last = last_ids(connection)[-1] if announced else stream
    asserts.true("the open stream is announced", last >= stream, str(last_ids(connection)))
    for _ in range(last // 2):
        connection.new_stream()  # Above the last stream, whatever that is.
    above = connection.call(path("Waits"), b"too late")
    with asserts.owed("the acknowledgement of a PING"):
        connection.fence()
    release(grpc_library, released)
    if announced:
        answer = asserts.answered(connection, stream)
        asserts.ended_with(answer, "OK")
        asserts.equal("the messages", (b"at work",), answer.payloads)
        asserts.closed(connection)
        later = connection.so_far(above)
        asserts.true("the stream above did not succeed", later.status != 0, str(later))
    # One that announces nothing, and refuses the calls that come, owes nothing here but to process none of them.
    stopped.result(grpc_library.timeout)
    asserts.equal("the requests that were processed", [b"at work"], grpc_library.seen.values("runs"))
