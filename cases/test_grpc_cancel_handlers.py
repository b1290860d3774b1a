"""What handlers see of a cancellation, and what they may do about it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Iterator
from typing import Any

import pytest
from grpc import aio

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
from pytest_grpc_conformance.wire.frames import Setting

SYNC_STREAMS = 3
UPLOADS = 20
"""Broken-off uploads, as the cancellation of a handler sometimes outruns the end of its requests."""
WHOLE = "the end of the requests, as after a whole upload"
AIO: Any = aio
"""Its type stubs do not know `EOF`."""


async def _set(event: asyncio.Event) -> None:
    event.set()


async def _wait_for_ever(target: LibraryTarget) -> None:
    target.seen.note("began")
    await asyncio.Event().wait()


def _cancel(target: LibraryTarget, connection: RawConnection, *, ends: bool = True) -> int:
    """Call the method `Method`, and reset the stream once its handler has begun; the stream's id."""
    before = len(target.seen.values("began"))
    stream = connection.start(path("Method"))
    connection.send_message(stream, b"request", end_stream=ends)
    target.seen.wait("began", target.timeout, count=before + 1)
    connection.reset(stream)
    return stream


@requirement("GRPC-CAN-04")
@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_cancellation_is_raised_at_the_await(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST raise `CancelledError` at the handler's await, and let blocks with awaits complete."""

    def exchange(target: LibraryTarget) -> Any:
        async def cleans() -> None:
            try:
                await _wait_for_ever(target)
            except BaseException as error:
                await asyncio.sleep(0.001)
                target.seen.note("except", type(error).__name__)
                raise
            finally:
                await asyncio.sleep(0.001)
                target.seen.note("finally")

        async def coroutine(request: bytes, context: Any) -> bytes:
            await cleans()
            return b""

        async def generator(request: bytes, context: Any) -> Any:
            await cleans()
            yield b""

        handler = unary(coroutine) if kind == "unary" else server_streaming(generator)
        connection = target.serve({"Method": handler}).connect()
        _cancel(target, connection)
        target.seen.wait("finally", target.timeout)
        return target.seen.values("except")

    asserts.parity(grpc_library, exchange, expected=["CancelledError"])


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@requirement("GRPC-CAN-05")
def test_generator_at_its_yield_is_closed(grpc_library: LibraryTarget) -> None:
    """The server MUST close a generator that is parked at `yield` when its client leaves, without the collector."""

    def exchange(target: LibraryTarget) -> Any:
        async def pours(request: bytes, context: Any) -> Any:
            target.seen.note("began")
            try:
                while True:
                    yield bytes(65_536)
            except BaseException as error:
                target.seen.note("closed", type(error).__name__)
                raise

        served = target.serve({"Method": server_streaming(pours)})
        connection = served.connect(settings={Setting.INITIAL_WINDOW_SIZE: 0}, grants=False)
        _cancel(target, connection)
        return target.seen.wait("closed", target.timeout)

    with _without_garbage_collection():
        asserts.parity(grpc_library, exchange, expected=["GeneratorExit"])


@requirement("GRPC-CAN-06")
def test_done_callback_of_a_cancelled_call(grpc_library: LibraryTarget) -> None:
    """The server SHOULD answer true to `cancelled()` and `done()` in done-callbacks of a call that was cancelled."""

    async def waits(request: bytes, context: Any) -> bytes:
        def done(_: Any) -> None:
            grpc_library.seen.note("done", {"cancelled()": context.cancelled(), "done()": context.done()})

        context.add_done_callback(done)
        await _wait_for_ever(grpc_library)
        return b""

    connection = grpc_library.serve({"Method": unary(waits)}).connect()
    with asserts.owed("the call of the handler"):
        _cancel(grpc_library, connection)
    found = asserts.seen(grpc_library, "done")
    asserts.equal("what the context says in the callback", [{"cancelled()": True, "done()": True}], found)


@requirement("GRPC-CAN-07")
def test_swallowed_cancellation_does_no_harm(grpc_library: LibraryTarget) -> None:
    """The server MUST serve on after handlers that swallow their cancellation and return."""

    def exchange(target: LibraryTarget) -> Any:
        async def swallows(request: bytes, context: Any) -> bytes:
            with contextlib.suppress(asyncio.CancelledError):
                await _wait_for_ever(target)
            target.seen.note("returns")
            return b"late"

        connection = target.serve({"Method": unary(swallows), "Echo": ECHO}).connect()
        found = []
        for number in range(5):
            _cancel(target, connection)
            target.seen.wait("returns", target.timeout, count=number + 1)
            answer = connection.unary(path("Echo"), b"later")
            found.append((answer.status, answer.payloads))
        return found

    asserts.parity(grpc_library, exchange, expected=[(0, (b"later",))] * 5)


@requirement("GRPC-CAN-08")
def test_write_after_cancellation_raises(grpc_library: LibraryTarget) -> None:
    """The server SHOULD raise in a handler that writes after its cancellation."""

    def exchange(target: LibraryTarget) -> Any:
        async def writes(request: bytes, context: Any) -> None:
            await context.write(b"first")
            with contextlib.suppress(asyncio.CancelledError):
                await _wait_for_ever(target)
            try:
                await context.write(b"late")
                target.seen.note("late", "it reports success")
            except BaseException:
                target.seen.note("late", "it raises")
                raise

        connection = target.serve({"Method": server_streaming(writes)}).connect()
        _cancel(target, connection)
        return target.seen.wait("late", target.timeout)

    asserts.parity(grpc_library, exchange, expected=["it raises"])


class _Logged(logging.Handler):
    """Notes the records that carry a certain exception."""

    def __init__(self, target: LibraryTarget, wording: str) -> None:
        super().__init__(logging.WARNING)
        self._target = target
        self._wording = wording

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info and self._wording in str(record.exc_info[1]):
            self._target.seen.note("logged")


@requirement("GRPC-CAN-09")
def test_exception_while_cancelled_is_logged(grpc_library: LibraryTarget) -> None:
    """The server MUST log an exception that a handler raises while it is cancelled, and serve other calls."""

    def exchange(target: LibraryTarget) -> Any:
        released = asyncio.Event()

        async def raises(request: bytes, context: Any) -> bytes:
            try:
                await _wait_for_ever(target)
            except asyncio.CancelledError:
                raise ValueError("in the clean-up") from None
            return b""

        async def stays(request: bytes, context: Any) -> bytes:
            await released.wait()
            return request

        connection = target.serve({"Method": unary(raises), "Stays": unary(stays)}).connect()
        other = connection.call(path("Stays"), b"stays")
        handler = _Logged(target, "in the clean-up")
        logging.getLogger().addHandler(handler)
        try:
            _cancel(target, connection)
            target.seen.wait("logged", target.timeout)
        finally:
            logging.getLogger().removeHandler(handler)
        target.run(_set(released))
        answer = connection.answer(other)
        return answer.status, answer.payloads

    asserts.parity(grpc_library, exchange, expected=(0, (b"stays",)))


@requirement("GRPC-CAN-14")
def test_sync_generator_is_closed(grpc_library: LibraryTarget) -> None:
    """The server SHOULD close a plain generator whose client has left, and have its thread back."""

    def pours(request: bytes, context: Any) -> Any:
        grpc_library.seen.note("began")
        try:
            while True:
                yield bytes(65_536)
        finally:
            grpc_library.seen.note("closed")

    served = grpc_library.serve({"Method": server_streaming(pours)})
    connection = served.connect(settings={Setting.INITIAL_WINDOW_SIZE: 0}, grants=False)
    with asserts.owed("the call of the handler"):
        for _ in range(SYNC_STREAMS):
            _cancel(grpc_library, connection)
    try:
        with asserts.owed("the end of every generator"):
            grpc_library.seen.wait("closed", max(1.0, grpc_library.timeout / 5), count=SYNC_STREAMS)
    finally:
        grpc_library.run(_let_go(grpc_library))


async def _let_go(target: LibraryTarget) -> None:
    """Free the threads of grpcio that wait to put a message into a queue which nobody reads: the process would hang."""
    until = asyncio.get_running_loop().time() + target.timeout
    stuck = True
    while stuck and asyncio.get_running_loop().time() < until:
        puts = [t for t in asyncio.all_tasks() if getattr(t.get_coro(), "__qualname__", "") == "Queue.put"]
        for task in puts:
            task.cancel()
        await asyncio.sleep(0.01)
        stuck = bool(puts)


@requirement("GRPC-CAN-15")
def test_shielded_work_survives(grpc_library: LibraryTarget) -> None:
    """The server MUST let work behind `asyncio.shield` go on when it cancels the handler."""

    def exchange(target: LibraryTarget) -> Any:
        released = asyncio.Event()

        async def work() -> None:
            try:
                await released.wait()
                target.seen.note("work", "done")
            except BaseException as error:
                target.seen.note("work", type(error).__name__)
                raise

        async def shields(request: bytes, context: Any) -> bytes:
            running = asyncio.ensure_future(work())
            target.seen.note("began")
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                target.seen.note("cancelled")
                raise
            return b""

        connection = target.serve({"Method": unary(shields), "Echo": ECHO}).connect()
        _cancel(target, connection)
        target.seen.wait("cancelled", target.timeout)
        asserts.still_serves(connection, path("Echo"))
        target.run(_set(released))
        return target.seen.wait("work", target.timeout)

    asserts.parity(grpc_library, exchange, expected=["done"])


@requirement("GRPC-CAN-16")
@pytest.mark.parametrize("how", ["reset", "lost"])
@pytest.mark.parametrize("by", ["iteration", "read"])
def test_broken_off_upload_is_no_whole_one(grpc_library: LibraryTarget, by: str, how: str) -> None:
    """The server MUST NOT let the requests of a broken-off upload end as those of a completed one do."""

    async def requests_of(requests: Any, context: Any) -> Any:
        if by == "iteration":
            async for request in requests:
                yield request
        else:
            while (request := await context.read()) is not AIO.EOF:
                yield request

    async def uploaded(requests: Any, context: Any) -> bytes:
        try:
            async for _ in requests_of(requests, context):
                grpc_library.seen.note("request")
            grpc_library.seen.note("ended", WHOLE)
        except BaseException as error:
            grpc_library.seen.note("ended", type(error).__name__)
            raise
        return b""

    served = grpc_library.serve({"Upload": client_streaming(uploaded)})
    for number in range(1, UPLOADS + 1):
        connection = served.connect()
        stream = connection.start(path("Upload"))
        connection.send_message(stream, b"first of many")
        asserts.seen(grpc_library, "request", count=number)
        if how == "reset":
            connection.reset(stream)
        else:
            connection.abort()
        ended = asserts.seen(grpc_library, "ended", count=number)
        asserts.true("the handler is told that the upload was broken off", ended[-1] != WHOLE, ended[-1])


@requirement("GRPC-CAN-18")
@pytest.mark.parametrize("kind", ["upload", "bidi"])
def test_cancellation_reaches_request_streams(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST cancel handlers with a request stream too."""

    def exchange(target: LibraryTarget) -> Any:
        async def parks(requests: Any) -> None:
            async for _ in requests:
                try:
                    await _wait_for_ever(target)
                except BaseException as error:
                    target.seen.note("ended", type(error).__name__)
                    raise

        async def uploaded(requests: Any, context: Any) -> bytes:
            await parks(requests)
            return b""

        async def conversed(requests: Any, context: Any) -> Any:
            yield b"first"
            await parks(requests)

        handler = client_streaming(uploaded) if kind == "upload" else bidi(conversed)
        _cancel(target, target.serve({"Method": handler}).connect(), ends=False)
        return target.seen.wait("ended", target.timeout)

    asserts.parity(grpc_library, exchange, expected=["CancelledError"])
