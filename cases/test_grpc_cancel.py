"""What ends a call from the client's side, and what that must not touch."""

from __future__ import annotations

import asyncio
import contextlib
import struct
import threading
from collections import Counter
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    ECHO,
    Handler,
    LibraryTarget,
    bidi,
    client_streaming,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire.connection import RawConnection, request_fields
from pytest_grpc_conformance.wire.frames import Flag, Kind, frame, message

BATCHES, BATCH = 10, 50
"""Cancelled streams: so many at once, and so many times."""


async def _set(event: asyncio.Event, after: float = 0.0) -> None:
    await asyncio.sleep(after)
    event.set()


async def _park(target: LibraryTarget) -> None:
    """Wait for ever, and note what ended that."""
    target.seen.note("began")
    try:
        await asyncio.Event().wait()
    except BaseException as error:
        target.seen.note("ended", type(error).__name__)
        raise


def _parked(target: LibraryTarget, kind: str) -> Handler:
    """A handler of a kind that is parked until its call ends."""

    async def coroutine(request: bytes, context: Any) -> bytes:
        await _park(target)
        return b""

    async def generator(request: bytes, context: Any) -> Any:
        yield b"first"
        await _park(target)

    async def uploaded(requests: Any, context: Any) -> bytes:
        async for _ in requests:
            await _park(target)
        return b""

    async def conversed(requests: Any, context: Any) -> Any:
        async for request in requests:
            yield request
            await _park(target)

    return {
        "unary": unary(coroutine),
        "stream": server_streaming(generator),
        "upload": client_streaming(uploaded),
        "bidi": bidi(conversed),
    }[kind]


def _held(target: LibraryTarget, event: asyncio.Event) -> Handler:
    """A unary handler that gives its request back once the event is set."""

    async def waits(request: bytes, context: Any) -> bytes:
        target.seen.note("held")
        await event.wait()
        return request

    return unary(waits)


def _whole(connection: RawConnection, stream: int, payload: bytes) -> None:
    """A call that was left alone ends with OK and its message."""
    answer = asserts.answered(connection, stream)
    asserts.ended_with(answer, "OK")
    asserts.equal("the messages of the other call", (payload,), answer.payloads)


async def _tasks() -> Counter[str]:
    """The tasks on the loop of the servers, by the name of their coroutine."""
    names = [getattr(task.get_coro(), "__qualname__", "?") for task in asyncio.all_tasks()]
    return Counter(name for name in names if name != "_tasks")


async def _more_than(before: Counter[str], timeout: float) -> Counter[str]:
    """The tasks that are left beside those of before; none as soon as there are none."""
    until = asyncio.get_running_loop().time() + timeout
    while more := await _tasks() - before:
        more.pop("_more_than", None)
        if not more or asyncio.get_running_loop().time() > until:
            break
        await asyncio.sleep(0.002)
    return more


def _left_tasks(target: LibraryTarget, before: Counter[str]) -> dict[str, int]:
    """The tasks that the calls of a case have left, which the server has the case's time to end."""
    return dict(target.run(_more_than(before, target.timeout), target.timeout * 2))


@requirement("GRPC-CAN-01")
@pytest.mark.parametrize("code", range(15), ids=lambda code: f"code={code}")
def test_reset_ends_the_call(grpc_library: LibraryTarget, code: int) -> None:
    """The server MUST cancel the handler on RST_STREAM with any code, send no more on it, and serve other streams."""
    stays = asyncio.Event()

    async def goes_on(request: bytes, context: Any) -> None:
        await context.write(b"first")
        with contextlib.suppress(asyncio.CancelledError):
            await _park(grpc_library)
        try:
            await context.write(b"late")
        finally:
            grpc_library.seen.note("tried")

    handlers = {"GoesOn": server_streaming(goes_on), "Stays": _held(grpc_library, stays)}
    connection = grpc_library.serve(handlers).connect()
    stayed = connection.call(path("Stays"), b"stays")
    asserts.seen(grpc_library, "held")
    stream = connection.call(path("GoesOn"))
    asserts.seen(grpc_library, "began")
    with asserts.owed("the first message"):
        connection.wait_messages(stream, 1)
    connection.reset(stream, code)
    asserts.equal("what ends the handler's await", ["CancelledError"], asserts.seen(grpc_library, "ended"))
    asserts.seen(grpc_library, "tried")
    grpc_library.run(_set(stays))
    _whole(connection, stayed, b"stays")
    answer = connection.so_far(stream)
    asserts.equal("the messages of the call that was reset", (b"first",), answer.payloads)
    asserts.true("no trailers follow on it", answer.trailers is None, str(answer))


@requirement("GRPC-CAN-02")
@pytest.mark.parametrize("how", ["close", "reset", "half-close"])
def test_lost_connection_cancels_its_calls(grpc_library: LibraryTarget, how: str) -> None:
    """The server MUST cancel every call on a connection that the client has closed, reset, or closed for writing."""
    handlers = {kind: _parked(grpc_library, kind) for kind in ("unary", "stream", "bidi")}
    connection = grpc_library.serve(handlers).connect()
    for kind in handlers:
        stream = connection.start(path(kind))
        connection.send_message(stream, b"parked", end_stream=kind != "bidi")
    asserts.seen(grpc_library, "began", count=len(handlers))
    {"close": connection.close, "reset": connection.abort, "half-close": connection.half_close}[how]()
    ended = asserts.seen(grpc_library, "ended", count=len(handlers))
    asserts.equal("what ends the handlers' awaits", ["CancelledError"] * len(handlers), ended)


@requirement("GRPC-CAN-03")
@pytest.mark.parametrize("seconds", [0.0, pytest.param(6.0, marks=pytest.mark.nightly)], ids=["soon", "six-seconds"])
def test_goaway_leaves_calls_alone(grpc_library: LibraryTarget, seconds: float) -> None:
    """The server MUST let calls in flight complete when the client sends GOAWAY(NO_ERROR)."""
    released = asyncio.Event()
    connection = grpc_library.serve({"Held": _held(grpc_library, released)}).connect()
    stream = connection.call(path("Held"), b"held")
    asserts.seen(grpc_library, "held")
    connection.goaway()
    with asserts.owed("the acknowledgement of a PING after GOAWAY"):
        connection.fence()
    grpc_library.run(_set(released, seconds))
    _whole(connection, stream, b"held")


@requirement("GRPC-CAN-10")
@pytest.mark.parametrize("sent", ["no-message", "half-message"])
@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_reset_before_the_message(grpc_library: LibraryTarget, kind: str, sent: str) -> None:
    """The server MUST NOT call the handler of a call that is reset before its message is whole, nor keep anything."""
    connection = grpc_library.serve({"Parked": _parked(grpc_library, kind), "Echo": ECHO}).connect()
    asserts.still_serves(connection, path("Echo"))
    before = grpc_library.run(_tasks())
    for _ in range(10):
        stream = connection.start(path("Parked"))
        if sent == "half-message":
            connection.data(stream, message(b"half", length=100))
        connection.reset(stream)
        asserts.still_serves(connection, path("Echo"))
    asserts.equal("calls of the handler", [], grpc_library.seen.values("began"))
    asserts.equal("tasks that are left", {}, _left_tasks(grpc_library, before))


@requirement("GRPC-CAN-11")
@pytest.mark.parametrize("count", [10, 30, 100, 1000], ids=lambda count: f"streams={count}")
def test_burst_of_resets(grpc_library: LibraryTarget, count: int) -> None:
    """The server SHOULD keep a connection usable after a burst of streams that are opened and reset at once."""
    connection = grpc_library.serve({"Echo": ECHO}).connect()
    asserts.still_serves(connection, path("Echo"))
    octets = b""
    for _ in range(count):
        stream = connection.new_stream()
        octets += frame(Kind.HEADERS, Flag.END_HEADERS, stream, connection.block(request_fields(path("Echo"))))
        octets += frame(Kind.RST_STREAM, 0, stream, struct.pack(">I", 8))
    connection.send(octets, f"{count} times HEADERS and RST_STREAM")
    asserts.still_serves(connection, path("Echo"))


@requirement("GRPC-CAN-12")
def test_cancelled_calls_of_a_stock_client(grpc_library: LibraryTarget) -> None:
    """The server MUST keep a stream whole through bursts of 60 calls that a stock client cancels."""

    def exchange(target: LibraryTarget) -> Any:
        stays = asyncio.Event()
        served = target.serve({"Parked": _parked(target, "unary"), "Stays": _held(target, stays)})
        channel: Any = served.channel()
        stayed = channel.unary_unary(path("Stays")).future(b"stays", timeout=target.timeout * 3)
        for burst in range(1, 4):
            calls = [channel.unary_unary(path("Parked")).future(b"") for _ in range(60)]
            target.seen.wait("began", target.timeout, count=60 * burst)
            for call in calls:
                call.cancel()
            target.seen.wait("ended", target.timeout, count=60 * burst)
        target.run(_set(stays))
        stayed.exception(target.timeout * 3)
        return stayed.code().name

    asserts.parity(grpc_library, exchange, expected="OK")


@requirement("GRPC-CAN-13")
@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_cancelled_calls_leave_nothing(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST leave no handler and no task behind after 500 cancelled streams."""

    def exchange(target: LibraryTarget) -> Any:
        connection = target.serve({"Parked": _parked(target, kind), "Echo": ECHO}).connect()
        asserts.still_serves(connection, path("Echo"))
        before = target.run(_tasks())
        for batch in range(1, BATCHES + 1):
            streams = [connection.call(path("Parked")) for _ in range(BATCH)]
            target.seen.wait("began", target.timeout, count=BATCH * batch)
            for stream in streams:
                connection.reset(stream)
            target.seen.wait("ended", target.timeout, count=BATCH * batch)
        asserts.still_serves(connection, path("Echo"))
        return _left_tasks(target, before)

    asserts.parity(grpc_library, exchange, expected={})


@requirement("GRPC-CAN-17")
@pytest.mark.parametrize("kind", ["unary", "stream", "upload"])
def test_reset_while_the_loop_is_busy(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST NOT start a call that is reset while it is queued, or cancel it at its first await."""
    gate = threading.Event()

    async def blocks(request: bytes, context: Any) -> bytes:
        grpc_library.seen.note("blocks")
        gate.wait(grpc_library.timeout)
        return request

    async def uploaded(requests: Any, context: Any) -> bytes:
        await _park(grpc_library)
        return b""

    parked = client_streaming(uploaded) if kind == "upload" else _parked(grpc_library, kind)
    connection = grpc_library.serve({"Blocks": unary(blocks), "Parked": parked, "Echo": ECHO}).connect()
    asserts.still_serves(connection, path("Echo"))
    try:
        blocking = connection.call(path("Blocks"), b"blocks")
        asserts.seen(grpc_library, "blocks")
        for _ in range(10):
            connection.reset(connection.call(path("Parked")))
    finally:
        gate.set()
    _whole(connection, blocking, b"blocks")
    asserts.still_serves(connection, path("Echo"))
    ended: list[str] = []
    while len(ended) < (started := len(grpc_library.seen.values("began"))):
        ended = asserts.seen(grpc_library, "ended", count=started)
    asserts.equal("what ends the awaits of those that were started", ["CancelledError"] * len(ended), ended)


@requirement("GRPC-CAN-19")
@pytest.mark.parametrize("kind", ["abort", "return", "stream"])
def test_late_status_stays_off_other_streams(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST NOT let the status or message of a cancelled call appear on a later stream."""

    def exchange(target: LibraryTarget) -> Any:
        async def aborts(request: bytes, context: Any) -> bytes:
            try:
                await _park(target)
            except asyncio.CancelledError:
                await context.abort(grpc.StatusCode.DATA_LOSS, "stale")
            return b""

        async def returns(request: bytes, context: Any) -> bytes:
            with contextlib.suppress(asyncio.CancelledError):
                await _park(target)
            return b"stale"

        async def streams(request: bytes, context: Any) -> Any:
            with contextlib.suppress(asyncio.CancelledError):
                await _park(target)
            yield b"stale"

        handlers = {"abort": unary(aborts), "return": unary(returns), "stream": server_streaming(streams)}
        connection = target.serve({"Late": handlers[kind], "Echo": ECHO}).connect()
        found = []
        for number in range(5):
            stream = connection.call(path("Late"))
            target.seen.wait("began", target.timeout, count=number + 1)
            connection.reset(stream)
            target.seen.wait("ended", target.timeout, count=number + 1)
            answer = connection.unary(path("Echo"), b"%d" % number)
            found.append((answer.status, answer.details, answer.payloads))
        return found

    asserts.parity(grpc_library, exchange, expected=[(0, "", (b"%d" % number,)) for number in range(5)])
