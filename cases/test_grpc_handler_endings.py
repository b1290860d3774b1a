"""How a handler may end without being asked to, what outlives it, and how many run at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.servers.base import ServerSetup
from pytest_grpc_conformance.targets.library import (
    ECHO,
    Handler,
    LibraryTarget,
    path,
    registering,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire.connection import RawConnection, WireSilence
from pytest_grpc_conformance.wire.frames import DEFAULT_WINDOW, ErrorCode


def _raising(make: Any, streaming: bool, told: bytes = b"") -> Handler:
    """A handler that raises what ``make`` gives, as a stream after the message ``told``, if there is one."""

    async def one(request: bytes, context: Any) -> bytes:
        raise make()

    async def many(request: bytes, context: Any) -> Any:
        if told:
            yield told
        raise make()

    return server_streaming(many) if streaming else unary(one)


async def _awaits_a_cancelled_future(request: bytes, context: Any) -> bytes:
    future: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
    future.cancel()
    return await future


async def _cancels_itself(request: bytes, context: Any) -> bytes:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.Event().wait()
    return b""


UNASKED: dict[str, Handler] = {
    "Raised": _raising(asyncio.CancelledError, streaming=False),
    "RaisedInStream": _raising(asyncio.CancelledError, streaming=True, told=b"told"),
    "CancelledFuture": unary(_awaits_a_cancelled_future),
    "OwnTask": unary(_cancels_itself),
}


@requirement("GRPC-HND-12")
def test_cancelled_error_that_nobody_asked_for_ends_the_call(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call, not with OK, whose handler raises CancelledError by itself."""
    connection = grpc_library.serve({**UNASKED, "Echo": ECHO}).connect()
    streams = {name: connection.call(path(name)) for name in UNASKED}
    answers = asserts.settled(connection, list(streams.values()), path("Echo"))
    left = [name for name, answer in zip(streams, answers, strict=True) if not answer.ended]
    asserts.equal("the calls that are left open", [], left)
    for answer in answers:
        asserts.fails(answer)


def _downstream_error() -> BaseException:
    nothing = grpc.aio.Metadata()
    return grpc.aio.AioRpcError(grpc.StatusCode.NOT_FOUND, nothing, nothing, "from downstream", None)


LIBRARY_ERRORS: dict[str, Any] = {
    "rpc-error": _downstream_error,
    "timeout": asyncio.TimeoutError,
    "not-implemented": NotImplementedError,
    "stop-async-iteration": StopAsyncIteration,
    "abort-by-hand": lambda: grpc.aio.AbortError("by hand"),
}


@requirement("GRPC-HND-13")
@pytest.mark.parametrize("streaming", [False, True], ids=["unary", "streaming"])
@pytest.mark.parametrize("make", LIBRARY_ERRORS.values(), ids=LIBRARY_ERRORS.keys())
def test_library_exception_ends_the_call_unknown(grpc_library: LibraryTarget, make: Any, streaming: bool) -> None:
    """The server MUST end a call with UNKNOWN that a library's exception escapes from."""

    def exchange(target: LibraryTarget) -> Any:
        connection = target.serve({"Method": _raising(make, streaming)}).connect()
        answer = connection.answer(connection.call(path("Method")))
        return answer.status, answer.payloads

    asserts.parity(grpc_library, exchange, expected=(asserts.STATUS["UNKNOWN"], ()))


@requirement("GRPC-HND-14")
def test_generator_exit_of_a_coroutine_ends_its_call_only(grpc_library: LibraryTarget) -> None:
    """The server SHOULD end a call with a status that GeneratorExit escapes from, and live on."""
    connection = grpc_library.serve({"Method": _raising(GeneratorExit, False), "Echo": ECHO}).connect()
    [answer] = asserts.settled(connection, [connection.call(path("Method"))], path("Echo"))
    asserts.true("the call has ended", answer.ended, str(answer))
    asserts.fails(answer)


def _ends_of_exits(target: LibraryTarget) -> list[str]:
    """What the loop ended with, for handlers that raise each of the two."""
    return [_end_of_exit(target, error) for error in (SystemExit, KeyboardInterrupt)]


def _end_of_exit(target: LibraryTarget, error: type[BaseException]) -> str:
    async def serve() -> None:
        running = await target.library.start(ServerSetup([registering({"Method": _raising(error, False)})]))
        answered = asyncio.Event()
        told = functools.partial(asyncio.get_running_loop().call_soon_threadsafe, answered.set)
        # A daemon, since nobody answers it once the loop has ended.
        threading.Thread(target=_call_once, args=(target, running.port, told), daemon=True).start()
        await answered.wait()

    try:
        asyncio.run(serve())
    except error:
        return error.__name__
    return "nothing"


def _call_once(target: LibraryTarget, port: int, told: Callable[[], Any]) -> None:
    with (
        contextlib.suppress(WireSilence),
        RawConnection(f"127.0.0.1:{port}", target.transcript, timeout=target.timeout) as connection,
    ):
        connection.unary(path("Method"))
    told()


@requirement("GRPC-HND-15")
def test_exit_raised_by_a_handler_reaches_the_loop(grpc_library: LibraryTarget) -> None:
    """The server MUST let SystemExit and KeyboardInterrupt of a handler propagate to the loop."""
    ended = grpc_library.in_child(_ends_of_exits)
    asserts.equal("what the loop ended with", ["SystemExit", "KeyboardInterrupt"], ended.result)


@requirement("GRPC-HND-20")
def test_background_task_outlives_its_call(grpc_library: LibraryTarget) -> None:
    """The server MUST leave alone a task that a handler started, once the call is over."""

    def exchange(target: LibraryTarget) -> Any:
        call_is_over = asyncio.Event()
        tasks: list[Any] = []

        async def goes_on() -> None:
            await call_is_over.wait()
            target.seen.note("went on")

        async def starts(request: bytes, context: Any) -> bytes:
            tasks.append(asyncio.ensure_future(goes_on()))
            return b"started"

        async def over() -> None:
            call_is_over.set()
            await asyncio.wait(tasks)

        outcome = target.serve({"Method": unary(starts)}).call("Method")
        target.run(over())
        return outcome.messages, target.seen.names

    asserts.parity(grpc_library, exchange, expected=((b"started",), ["went on"]))


@requirement("GRPC-HND-21")
@pytest.mark.parametrize("way", ["yielded", "written"])
@pytest.mark.parametrize(
    "count", [2_000, pytest.param(20_000, marks=pytest.mark.nightly)], ids=lambda count: f"messages={count}"
)
def test_many_small_messages_come_complete_and_in_order(grpc_library: LibraryTarget, way: str, count: int) -> None:
    """The server MUST deliver thousands of small messages complete and in order."""

    async def yields(request: bytes, context: Any) -> Any:
        for number in range(count):
            yield b"%d" % number

    async def writes(request: bytes, context: Any) -> None:
        for number in range(count):
            await context.write(b"%d" % number)

    handler = server_streaming(yields if way == "yielded" else writes)
    connection = grpc_library.serve({"Method": handler}).connect()
    answer = asserts.answered(connection, connection.call(path("Method")))
    asserts.ended_with(answer, "OK")
    told = tuple(b"%d" % number for number in range(count))
    asserts.equal("the number of messages", count, len(answer.payloads))
    asserts.true("the messages come in the order in which they were sent", answer.payloads == told, "another order")


@requirement("GRPC-HND-22")
def test_finally_of_a_cancelled_generator_completes(grpc_library: LibraryTarget) -> None:
    """The server MUST let a `finally` block with awaits complete after the client has cancelled."""

    async def cleans_up(request: bytes, context: Any) -> Any:
        try:
            yield b"first"
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            grpc_library.seen.note("cleaning")
            await asyncio.sleep(0)
            grpc_library.seen.note("clean")

    connection = grpc_library.serve({"Method": server_streaming(cleans_up)}).connect()
    stream = connection.call(path("Method"))
    with asserts.owed("the first message"):
        connection.wait_messages(stream, 1)
    connection.reset(stream, ErrorCode.CANCEL)
    asserts.seen(grpc_library, "clean")


@requirement("GRPC-HND-23")
def test_calls_beyond_the_limit_are_refused_until_one_ends(grpc_library: LibraryTarget) -> None:
    """The server SHOULD refuse calls beyond `maximum_concurrent_rpcs`, and recover; or refuse the argument."""

    def exchange(target: LibraryTarget) -> Any:
        release = asyncio.Event()

        async def held(request: bytes, context: Any) -> bytes:
            target.seen.note("running")
            await release.wait()
            return b"done"

        async def let_go() -> None:
            release.set()

        try:
            served = target.serve({"Held": unary(held), "Echo": ECHO}, maximum_concurrent_rpcs=2)
        except (ValueError, TypeError, NotImplementedError):
            return "refused loudly"
        connection = served.connect()
        running = [connection.call(path("Held")) for _ in range(2)]
        target.seen.wait("running", target.timeout, count=2)
        refused = connection.unary(path("Echo"))
        target.run(let_go())
        ended = {connection.answer(stream).status for stream in running}
        recovered = _until_served(connection)
        return refused.status, refused.details, ended, recovered

    told = (asserts.STATUS["RESOURCE_EXHAUSTED"], "Concurrent RPC limit exceeded!", {0}, True)
    with asserts.owed("the end of the exchange"):
        observed = exchange(grpc_library)
    if observed != "refused loudly":
        asserts.equal("calls beyond the limit, and after it", told, observed)


def _until_served(connection: Any) -> bool:
    """Whether a call is served within a hundred: a library may count a call for a moment after its end."""
    return any(connection.unary(path("Echo")).status == 0 for _ in range(100))


@requirement("GRPC-HND-24")
def test_sync_call_is_served_beside_slow_sync_streams(grpc_library: LibraryTarget) -> None:
    """The server SHOULD serve a sync unary call beside two sync streams on a pool of two threads."""

    def exchange(target: LibraryTarget) -> Any:
        go_on = threading.Event()

        def slow(request: bytes, context: Any) -> Any:
            yield b"first"
            go_on.wait(target.timeout)
            yield b"second"

        def quick(request: bytes, context: Any) -> bytes:
            return b"quick"

        with ThreadPoolExecutor(2) as pool:
            served = target.serve({"Slow": server_streaming(slow), "Quick": unary(quick)}, migration_thread_pool=pool)
            connection = served.connect()
            slow_ones = [connection.call(path("Slow")) for _ in range(2)]
            for stream in slow_ones:
                connection.wait_messages(stream, 1)
            waiting = connection.call(path("Quick"))
            go_on.set()
            answers = [connection.answer(stream) for stream in (waiting, *slow_ones)]
            served.close()
        return [(answer.status, answer.payloads) for answer in answers]

    stream = (0, (b"first", b"second"))
    asserts.parity(grpc_library, exchange, expected=[(0, (b"quick",)), stream, stream])


@requirement("GRPC-HND-22", "GRPC-CAN-05")
def test_generator_that_waits_for_window_is_closed_when_the_client_leaves(grpc_library: LibraryTarget) -> None:
    """The server MUST close a generator that is parked at `yield` when its client leaves."""

    async def bulky(request: bytes, context: Any) -> Any:
        try:
            for _ in range(64):
                yield bytes(DEFAULT_WINDOW)
        finally:
            grpc_library.seen.note("closed")

    connection = grpc_library.serve({"Method": server_streaming(bulky)}).connect(grants=False)
    stream = connection.call(path("Method"))
    with asserts.owed("as much of the stream as the window allows"):
        connection.wait(lambda: connection.received.size(stream) >= DEFAULT_WINDOW, "a full window")
    connection.reset(stream, ErrorCode.CANCEL)
    asserts.seen(grpc_library, "closed")
