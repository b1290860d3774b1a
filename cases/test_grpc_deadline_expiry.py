"""What happens when a deadline passes. The client of these cases is raw: a stock one would end the call by itself."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import grpc
import grpc.aio
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
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import RawConnection
from pytest_grpc_conformance.wire.frames import ErrorCode, Kind, Setting

DEADLINES = ("25m", "100m", "400m", "1600m")
"""A short deadline; the longer ones are for a host on which the handler did not begin within a shorter one."""
CALLS, OUTRUN = 240, 20
"""Calls with a deadline of zero, and how many of them may outrun it: a few do on every library, now and then."""


def _expired(answer: Answer) -> None:
    """The server has ended the call as one whose deadline has passed."""
    by_status = answer.status == asserts.STATUS["DEADLINE_EXCEEDED"] and answer.http_status == "200"
    by_reset = answer.trailers is None and answer.reset == ErrorCode.CANCEL
    asserts.true(
        "the server ends the call with DEADLINE_EXCEEDED, or by RST_STREAM(CANCEL)", by_status or by_reset, str(answer)
    )


def _expire(target: LibraryTarget, send: Callable[[str], Answer], what: str = "began") -> Answer:
    """The answer to a call whose deadline passed after the handler had noted something. ``send`` gets the deadline."""
    for timeout in DEADLINES:
        before = len(target.seen.values(what))
        answer = send(timeout)
        if len(target.seen.values(what)) > before:
            return answer
    asserts.violation("the handler was not reached before the deadline", what, f"{timeout} passed")


def _calls(connection: RawConnection, method: str, *, ends: bool = True) -> Callable[[str], Answer]:
    """A function that makes a call of one message with a deadline; ``ends``: the message is the last one."""

    def send(timeout: str) -> Answer:
        stream = connection.start(path(method), timeout=timeout)
        connection.send_message(stream, b"timed", end_stream=ends)
        return asserts.answered(connection, stream)

    return send


async def _set(event: asyncio.Event) -> None:
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

    async def coroutine(request: Any, context: Any) -> bytes:
        await _park(target)
        return b""

    async def silent(request: Any, context: Any) -> Any:
        await _park(target)
        yield b""

    async def spoken(request: Any, context: Any) -> Any:
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
        "stream": server_streaming(silent),
        "stream-begun": server_streaming(spoken),
        "upload": client_streaming(uploaded),
        "bidi": bidi(conversed),
    }[kind]


@requirement("GRPC-DL-07")
@pytest.mark.parametrize("kind", ["unary", "stream", "stream-begun", "bidi"])
def test_expiry_ends_the_call(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST end a call whose deadline passes, even if its client stays silent."""
    connection = grpc_library.serve({"Parked": _parked(grpc_library, kind), "Echo": ECHO}).connect()
    answer = _expire(grpc_library, _calls(connection, "Parked", ends=kind != "bidi"))
    _expired(answer)
    expected = {"stream-begun": (b"first",), "bidi": (b"timed",)}.get(kind, ())
    asserts.equal("the messages before the deadline", expected, answer.payloads)
    asserts.still_serves(connection, path("Echo"))


@requirement("GRPC-DL-08")
@pytest.mark.parametrize("kind", ["unary", "stream", "upload"])
def test_expiry_ends_a_call_without_message(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST end a call whose deadline passes while its request message has yet to come."""
    connection = grpc_library.serve({"Parked": _parked(grpc_library, kind), "Echo": ECHO}).connect()
    stream = connection.start(path("Parked"), timeout="25m")
    _expired(asserts.answered(connection, stream))
    asserts.equal("times that the parked handler saw a message", [], grpc_library.seen.values("began"))
    asserts.still_serves(connection, path("Echo"))


@requirement("GRPC-DL-09")
def test_expiry_ends_a_call_without_window(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call whose deadline passes while it waits for window, and release the handler."""

    async def pours(request: bytes, context: Any) -> Any:
        grpc_library.seen.note("began")
        try:
            while True:
                yield bytes(65_536)
        finally:
            grpc_library.seen.note("released")

    served = grpc_library.serve({"Pours": server_streaming(pours)})
    for initial_window in (0, 1 << 20):  # The stream's window is shut, and then the connection's.
        settings = {Setting.INITIAL_WINDOW_SIZE: initial_window}
        connection = served.connect(settings=settings, grants=False, timeout=max(1.0, grpc_library.timeout / 5))
        _expired(_expire(grpc_library, _calls(connection, "Pours")))
    asserts.seen(grpc_library, "released", count=len(grpc_library.seen.values("began")))


@requirement("GRPC-DL-10")
@pytest.mark.parametrize("kind", ["unary", "stream", "stream-begun"])
def test_expiry_cancels_the_handler(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST raise `CancelledError` at the handler's await once its deadline passes."""

    def exchange(target: LibraryTarget) -> Any:
        connection = target.serve({"Parked": _parked(target, kind)}).connect()
        _expire(target, _calls(connection, "Parked"))
        return target.seen.wait("ended", target.timeout)[-1]

    asserts.parity(grpc_library, exchange, expected="CancelledError")


@requirement("GRPC-DL-10")
def test_expiry_lets_clean_up_run(grpc_library: LibraryTarget) -> None:
    """The server MUST let `finally` blocks with awaits of a handler whose deadline has passed run to their end."""

    def exchange(target: LibraryTarget) -> Any:
        async def cleans(request: bytes, context: Any) -> bytes:
            target.seen.note("began")
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.01)
                target.seen.note("cleaned")
            return b""

        connection = target.serve({"Cleans": unary(cleans)}).connect()
        _expire(target, _calls(connection, "Cleans"))
        return len(target.seen.wait("cleaned", target.timeout)) > 0

    asserts.parity(grpc_library, exchange, expected=True)


@requirement("GRPC-DL-11", "GRPC-DL-12")
@pytest.mark.parametrize("kind", ["unary", "stream", "write"])
def test_handler_that_goes_on_after_expiry(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST send the status at the deadline though the handler goes on, and send nothing after it."""
    released = asyncio.Event()

    async def goes_on() -> None:
        grpc_library.seen.note("began")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            grpc_library.seen.note("cancelled")
        await released.wait()

    async def coroutine(request: bytes, context: Any) -> bytes:
        await goes_on()
        grpc_library.seen.note("late")
        return b"late"

    async def generator(request: bytes, context: Any) -> Any:
        try:
            await goes_on()
            yield b"late"
        finally:
            grpc_library.seen.note("late")

    async def writes(request: bytes, context: Any) -> None:
        try:
            await goes_on()
            await context.write(b"late")
        finally:
            grpc_library.seen.note("late")

    handlers = {"unary": unary(coroutine), "stream": server_streaming(generator), "write": server_streaming(writes)}
    connection = grpc_library.serve({"GoesOn": handlers[kind], "Echo": ECHO}).connect()
    try:
        _expired(_expire(grpc_library, _calls(connection, "GoesOn")))
    finally:
        grpc_library.run(_set(released))
    asserts.seen(grpc_library, "late", count=len(grpc_library.seen.values("began")))
    asserts.still_serves(connection, path("Echo"))
    _silent_after_end(connection)


def _silent_after_end(connection: RawConnection) -> None:
    """On no stream did a message or a header block follow the one that ended it."""
    ended: set[int] = set()
    for frame in connection.received.frames:
        says = frame.type in (Kind.DATA, Kind.HEADERS)
        if says and frame.stream_id in ended:
            asserts.violation("something followed the end of a stream", "nothing", repr(frame))
        if (says and "END_STREAM" in frame.flags) or frame.type == Kind.RST_STREAM:
            ended.add(frame.stream_id)


@requirement("GRPC-DL-13")
@pytest.mark.parametrize("value", ["0S", "0n"])
def test_timeout_of_zero(grpc_library: LibraryTarget, value: str) -> None:
    """The server MUST end a call with a `grpc-timeout` of zero with DEADLINE_EXCEEDED, and not call the handler."""

    async def notes(request: bytes, context: Any) -> bytes:
        grpc_library.seen.note("called")
        return request

    connection = grpc_library.serve({"Notes": unary(notes), "Echo": ECHO}).connect()
    for number in range(1, CALLS + 1):
        answer = asserts.answered(connection, connection.call(path("Notes"), timeout=value))
        if answer.status != 0:
            _expired(answer)
        called = len(grpc_library.seen.values("called"))
        asserts.true("the handler is not called", called <= OUTRUN, f"it was called in {called} of {number} calls")
    asserts.still_serves(connection, path("Echo"))


@requirement("GRPC-DL-18")
def test_expiry_ends_the_call_of_a_sync_handler(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call at its deadline though its handler, a plain function, runs on."""

    def exchange(target: LibraryTarget) -> Any:
        event = threading.Event()

        def blocks(request: bytes, context: Any) -> bytes:
            target.seen.note("began")
            event.wait(target.timeout * 2)
            return b"late"

        connection = target.serve({"Blocks": unary(blocks)}).connect()
        try:
            _expired(_expire(target, _calls(connection, "Blocks")))
        finally:
            event.set()
        return "ended at the deadline"

    asserts.parity(grpc_library, exchange)


class _Held(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # The class takes no arguments when it runs.
    """Holds calls of one method until it is released."""

    def __init__(self, target: LibraryTarget) -> None:
        self.released = asyncio.Event()
        self._target = target

    async def intercept_service(self, continuation: Any, details: Any) -> Any:
        if details.method != path("Held"):
            return await continuation(details)
        self._target.seen.note("began")
        try:
            await self.released.wait()
            return await continuation(details)
        finally:
            self._target.seen.note("left")


@requirement("GRPC-DL-20")
def test_expiry_in_an_interceptor(grpc_library: LibraryTarget) -> None:
    """The server SHOULD end a call whose deadline passes in an interceptor, and not call the handler."""

    def exchange(target: LibraryTarget) -> Any:
        async def handler(request: bytes, context: Any) -> bytes:
            target.seen.note("called")
            return request

        held = _Held(target)
        served = target.serve({"Held": unary(handler), "Echo": ECHO}, interceptors=[held])
        connection = served.connect()
        try:
            _expired(_expire(target, _calls(connection, "Held")))
            # The interceptor is released after what the server's loop had to do at the deadline.
            asserts.still_serves(connection, path("Echo"))
        finally:
            target.run(_set(held.released))
        target.seen.wait("left", target.timeout, count=len(target.seen.values("began")))
        asserts.still_serves(connection, path("Echo"))
        return target.seen.values("called")

    asserts.parity(grpc_library, exchange, expected=[])


@requirement("GRPC-DL-21")
@pytest.mark.parametrize("at", ["handler", "read"])
@pytest.mark.parametrize("kind", ["upload", "bidi"])
def test_expiry_of_a_request_stream(grpc_library: LibraryTarget, kind: str, at: str) -> None:
    """The server MUST end a call with a request stream at its deadline, and cancel its handler."""

    def exchange(target: LibraryTarget) -> Any:
        async def reads(requests: Any) -> None:
            target.seen.note("began")
            try:
                async for _ in requests:
                    pass
            finally:  # On grpcio the requests end or `CancelledError` comes, whichever is first.
                target.seen.note("ended", "released")

        async def uploaded(requests: Any, context: Any) -> bytes:
            await reads(requests)
            return b""

        async def conversed(requests: Any, context: Any) -> Any:
            await reads(requests)
            yield b""

        reading = {"upload": client_streaming(uploaded), "bidi": bidi(conversed)}
        handler = reading[kind] if at == "read" else _parked(target, kind)
        connection = target.serve({"Method": handler}).connect()
        _expired(_expire(target, _calls(connection, "Method", ends=False)))
        return target.seen.wait("ended", target.timeout)[-1]

    asserts.parity(grpc_library, exchange, expected="released" if at == "read" else "CancelledError")
