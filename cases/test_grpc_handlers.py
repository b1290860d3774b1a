"""Every kind of handler that grpc.aio takes: what counts as which kind, where it runs, what its result becomes."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    ECHO,
    Handler,
    LibraryTarget,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire.stock import Outcome

POOL_NAME = "case-pool"


async def _answers(request: bytes, context: Any) -> bytes:
    return b"done " + request


async def _yields(request: bytes, context: Any) -> Any:
    for number in range(2):
        yield request + b" %d" % number


async def _writes(request: bytes, context: Any) -> None:
    for number in range(2):
        await context.write(request + b" %d" % number)


def _wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def around(request: bytes, context: Any) -> bytes:
        result: bytes = await function(request, context)
        return result

    return around


def _wrapped_generator(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    async def around(request: bytes, context: Any) -> Any:
        async for response in function(request, context):
            yield response

    return around


class _Methods:
    async def bound(self, request: bytes, context: Any) -> bytes:
        return b"done " + request

    @staticmethod
    async def static(request: bytes, context: Any) -> bytes:
        return b"done " + request

    async def stream(self, request: bytes, context: Any) -> Any:
        for number in range(2):
            yield request + b" %d" % number

    async def __call__(self, request: bytes, context: Any) -> bytes:
        return b"done " + request


def _outcome(target: LibraryTarget, handler: Handler, request: bytes = b"ask") -> Outcome:
    return target.serve({"Method": handler}).call("Method", request)


UNARY: dict[str, Callable[..., Any]] = {
    "coroutine": _answers,
    "bound-method": _Methods().bound,
    "static-method": _Methods.static,
    "partial": functools.partial(_answers),
    "wrapped": _wrapped(_answers),
}
STREAMING: dict[str, Callable[..., Any]] = {
    "generator": _yields,
    "bound-method": _Methods().stream,
    "partial": functools.partial(_yields),
    "wrapped": _wrapped_generator(_yields),
    "writing-coroutine": _writes,
}


@requirement("GRPC-HND-01")
@pytest.mark.parametrize("function", UNARY.values(), ids=UNARY.keys())
def test_unary_handler_of_any_kind_answers(grpc_library: LibraryTarget, function: Callable[..., Any]) -> None:
    """The server MUST take coroutine functions, bound, static, partial and wrapped, for unary handlers."""
    asserts.parity(
        grpc_library, lambda target: _outcome(target, unary(function)), expected=Outcome("OK", "", (b"done ask",))
    )


@requirement("GRPC-HND-02")
@pytest.mark.parametrize("function", STREAMING.values(), ids=STREAMING.keys())
def test_streaming_handler_of_any_kind_streams(grpc_library: LibraryTarget, function: Callable[..., Any]) -> None:
    """The server MUST take async generators of every kind, and coroutines that write, for streams."""
    asserts.parity(
        grpc_library,
        lambda target: _outcome(target, server_streaming(function)),
        expected=Outcome("OK", "", (b"ask 0", b"ask 1")),
    )


def _lambda_of_coroutine(request: bytes, context: Any) -> Any:
    return _answers(request, context)


def _function_of_generator(request: bytes, context: Any) -> Any:
    return _yields(request, context)


DISGUISED: dict[str, Handler] = {
    "callable-object": unary(_Methods()),
    "sync-wrapper": unary(_lambda_of_coroutine),
    "generator-wrapper": server_streaming(_function_of_generator),
}


@requirement("GRPC-HND-03")
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
@pytest.mark.parametrize("handler", DISGUISED.values(), ids=DISGUISED.keys())
def test_disguised_coroutine_is_no_async_handler(grpc_library: LibraryTarget, handler: Handler) -> None:
    """The server SHOULD take what only returns a coroutine for a sync handler, whose call ends UNKNOWN."""
    asserts.parity(grpc_library, lambda target: _outcome(target, handler).code, expected="UNKNOWN")


@requirement("GRPC-HND-04")
@pytest.mark.parametrize("value", [None, b"ignored"], ids=["none", "bytes"])
def test_coroutine_stream_without_writes_is_empty(grpc_library: LibraryTarget, value: bytes | None) -> None:
    """The server MUST end a stream with OK whose coroutine wrote nothing, whatever it returned."""

    async def returns(request: bytes, context: Any) -> bytes | None:
        return value

    asserts.parity(grpc_library, lambda target: _outcome(target, server_streaming(returns)), expected=Outcome("OK"))


@requirement("GRPC-HND-05")
@pytest.mark.parametrize("given", [False, True], ids=["default-executor", "migration-pool"])
def test_sync_unary_handler_runs_in_a_pool(grpc_library: LibraryTarget, given: bool) -> None:
    """The server MUST run sync unary handlers off the event loop, in the pool that it was given."""

    def exchange(target: LibraryTarget) -> Any:
        async def loop_thread() -> int:
            return threading.get_ident()

        def where(request: bytes, context: Any) -> bytes:
            thread = threading.current_thread()
            target.seen.note("in the pool", thread.name.startswith(POOL_NAME))
            target.seen.note("on the loop", thread.ident == loop)
            return b"done"

        loop = target.run(loop_thread())
        with ThreadPoolExecutor(1, thread_name_prefix=POOL_NAME) as pool:
            arguments: dict[str, Any] = {"migration_thread_pool": pool} if given else {}
            served = target.serve({"Method": unary(where)}, **arguments)
            outcome = served.call("Method")
            served.close()
        return outcome, target.seen.values("in the pool"), target.seen.values("on the loop")

    asserts.parity(grpc_library, exchange, expected=(Outcome("OK", "", (b"done",)), [given], [False]))


ITERABLES: dict[str, Callable[[bytes, Any], Any]] = {
    "generator": lambda request, context: (request + b" %d" % number for number in range(2)),
    "iterator": lambda request, context: iter([request + b" 0", request + b" 1"]),
    "list": lambda request, context: [request + b" 0", request + b" 1"],
    "tuple": lambda request, context: (request + b" 0", request + b" 1"),
}


@requirement("GRPC-HND-06")
@pytest.mark.parametrize("function", ITERABLES.values(), ids=ITERABLES.keys())
def test_sync_stream_may_be_any_iterable(grpc_library: LibraryTarget, function: Callable[..., Any]) -> None:
    """The server MUST stream whatever iterable a sync streaming handler returns."""
    asserts.parity(
        grpc_library,
        lambda target: _outcome(target, server_streaming(function)),
        expected=Outcome("OK", "", (b"ask 0", b"ask 1")),
    )


@requirement("GRPC-HND-07")
@pytest.mark.parametrize("count", [0, 1, 5], ids=lambda count: f"items={count}")
def test_sync_stream_that_raises_delivers_what_came_before(grpc_library: LibraryTarget, count: int) -> None:
    """The server MUST deliver the items of a sync stream that raises, and then UNKNOWN."""

    def raises(request: bytes, context: Any) -> Any:
        for number in range(count):
            yield b"%d" % number
        raise ValueError("boom")

    def exchange(target: LibraryTarget) -> Any:
        outcome = _outcome(target, server_streaming(raises))
        return outcome.code, outcome.messages

    told = tuple(b"%d" % number for number in range(count))
    asserts.parity(grpc_library, exchange, expected=("UNKNOWN", told))


@requirement("GRPC-HND-08")
def test_sync_generator_that_aborts_ends_with_its_status(grpc_library: LibraryTarget) -> None:
    """The server MUST end a sync stream that aborts after its first item with that status."""

    def aborts(request: bytes, context: Any) -> Any:
        yield b"first"
        context.abort(grpc.StatusCode.DATA_LOSS, "as asked")

    # Many, one after the other: the abort races with the item, and a library may lose some of the races only.
    connection = grpc_library.serve({"Method": server_streaming(aborts), "Echo": ECHO}).connect()
    streams = []
    for _ in range(40):
        streams.append(connection.call(path("Method")))
        with asserts.owed("the item before the abort"):
            connection.wait_messages(streams[-1], 1)
    answers = asserts.settled(connection, streams, path("Echo"))
    asserts.equal("the number of calls that are left open", 0, sum(not answer.ended for answer in answers))
    for answer in answers:
        asserts.ended_with(answer, "DATA_LOSS")
        asserts.equal("the messages before the abort", (b"first",), answer.payloads)
        asserts.equal("the details", "as asked", answer.details)


VALUES: dict[str, tuple[Any, bytes]] = {"none": (None, b""), "text": ("tschüß", "tschüß".encode())}


@requirement("GRPC-HND-09")
@pytest.mark.parametrize("kind", ["returned", "yielded"])
@pytest.mark.parametrize(("value", "sent"), VALUES.values(), ids=VALUES.keys())
def test_none_and_text_become_messages(grpc_library: LibraryTarget, kind: str, value: Any, sent: bytes) -> None:
    """The server MUST send None as an empty message and a str as UTF-8 where there is no serializer."""
    asserts.parity(
        grpc_library, lambda target: _outcome(target, _giving(kind, value)), expected=Outcome("OK", "", (sent,))
    )


def _giving(kind: str, value: Any, *before: bytes) -> Handler:
    async def returned(request: bytes, context: Any) -> Any:
        return value

    async def yielded(request: bytes, context: Any) -> Any:
        for message in before:
            yield message
        yield value

    return unary(returned) if kind == "returned" else server_streaming(yielded)


WRONG: dict[str, Any] = {
    "int": 7,
    "list": [b"x"],
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
}


@requirement("GRPC-HND-10")
@pytest.mark.parametrize("kind", ["returned", "yielded"])
@pytest.mark.parametrize("value", WRONG.values(), ids=WRONG.keys())
def test_value_of_another_type_ends_unknown(grpc_library: LibraryTarget, kind: str, value: Any) -> None:
    """The server MUST end a call with UNKNOWN and a TypeError's text whose result is no message."""

    def exchange(target: LibraryTarget) -> Any:
        outcome = _outcome(target, _giving(kind, value, b"before"))
        return outcome.code, "TypeError" in outcome.details, outcome.messages

    kept = (b"before",) if kind == "yielded" else ()
    asserts.parity(grpc_library, exchange, expected=("UNKNOWN", True, kept))


@requirement("GRPC-HND-11")
@pytest.mark.parametrize("streaming", [False, True], ids=["unary", "streaming"])
def test_serializer_that_raises_ends_unknown(grpc_library: LibraryTarget, streaming: bool) -> None:
    """The server MUST end a call with UNKNOWN and the exception's text whose response does not serialize."""

    def refuses(message: bytes) -> bytes:
        raise ValueError("cannot serialize this")

    handler: Handler = (
        grpc.unary_stream_rpc_method_handler(_yields, response_serializer=refuses)
        if streaming
        else grpc.unary_unary_rpc_method_handler(_answers, response_serializer=refuses)
    )

    def exchange(target: LibraryTarget) -> Any:
        outcome = _outcome(target, handler)
        return outcome.code, "cannot serialize this" in outcome.details, outcome.messages

    asserts.parity(grpc_library, exchange, expected=("UNKNOWN", True, ()))


@requirement("GRPC-HND-16")
def test_handlers_run_on_the_loop_that_started_the_server(grpc_library: LibraryTarget) -> None:
    """The server MUST run handlers on the loop that started it, each in its own task, concurrently."""
    count = 50

    def exchange(target: LibraryTarget) -> Any:
        async def current() -> Any:
            return asyncio.get_running_loop()

        loop = target.run(current())
        arrived: set[Any] = set()
        all_there = asyncio.Event()

        async def meets(request: bytes, context: Any) -> bytes:
            arrived.add(asyncio.current_task())
            target.seen.note("on the loop", asyncio.get_running_loop() is loop)
            if len(arrived) == count:
                all_there.set()
            await all_there.wait()
            return b"met"

        connection = target.serve({"Method": unary(meets)}).connect()
        streams = [connection.call(path("Method")) for _ in range(count)]
        answers = [connection.answer(stream) for stream in streams]
        return {answer.payloads for answer in answers}, set(target.seen.values("on the loop")), len(arrived)

    asserts.parity(grpc_library, exchange, expected=({(b"met",)}, {True}, count))


@requirement("GRPC-HND-17")
def test_context_variables_of_the_start_are_seen_and_copied(grpc_library: LibraryTarget) -> None:
    """The server SHOULD show the context variables of its start to async handlers, a copy to each."""
    variable = contextvars.ContextVar("variable", default="default")

    def exchange(target: LibraryTarget) -> Any:
        async def shows(request: bytes, context: Any) -> bytes:
            before = variable.get()
            variable.set("changed by a call")
            return before.encode()

        token = variable.set("set before the start")  # A coroutine handed to the loop takes this context along.
        try:
            served = target.serve({"Method": unary(shows)})
        finally:
            variable.reset(token)
        return [served.call("Method").messages for _ in range(2)]

    asserts.parity(grpc_library, exchange)


@requirement("GRPC-HND-19")
def test_sync_handlers_see_no_context_variables(grpc_library: LibraryTarget) -> None:
    """The server SHOULD run sync handlers without the context variables of its start."""
    variable = contextvars.ContextVar("variable", default="default")

    def exchange(target: LibraryTarget) -> Any:
        def shows(request: bytes, context: Any) -> bytes:
            return variable.get().encode()

        token = variable.set("set before the start")
        try:
            served = target.serve({"Method": unary(shows)})
        finally:
            variable.reset(token)
        return served.call("Method").messages

    asserts.parity(grpc_library, exchange)
