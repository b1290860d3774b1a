"""Which handler serves a path: registered and generic handlers, their order, and request streams through them."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.base import NotApplicable
from pytest_grpc_conformance.targets.library import (
    ECHO,
    SERVICE,
    Handler,
    LibraryTarget,
    Served,
    bidi,
    client_streaming,
    echoing,
    path,
    unary,
)
from pytest_grpc_conformance.wire import stock
from pytest_grpc_conformance.wire.connection import request_fields

METHODS = {"Unary": (b"one", False), "ServerStream": (b"one", True)}
STREAMED = {"ClientStream": False, "Bidi": True}
Generic = grpc.GenericRpcHandler


def _says(text: bytes) -> Handler:
    """A unary handler that answers with a text of its own."""

    async def says(request: bytes, context: Any) -> bytes:
        return text

    return unary(says)


def _generic(**handlers: Handler) -> Any:
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _adding(*generic: Any) -> Callable[[Any], None]:
    """Registers generic handlers, each by a call of its own, and nothing by method."""

    def register(server: Any) -> None:
        for handler in generic:
            server.add_generic_rpc_handlers((handler,))

    return register


def _registering(**handlers: Handler) -> Callable[[Any], None]:
    """Registers handlers by method alone."""
    return lambda server: server.add_registered_method_handlers(SERVICE, handlers)


def _said(served: Served, method: str) -> tuple[str, tuple[bytes, ...]]:
    outcome = served.call(method)
    return outcome.code, outcome.messages


class CatchAll(Generic):  # type: ignore[type-arg]  # The class takes no arguments when it runs.
    """Serves every path with one handler, or with what ``found`` does."""

    def __init__(self, found: Callable[[Any], Handler | None]) -> None:
        self._found = found

    def service(self, handler_call_details: Any) -> Any:
        return self._found(handler_call_details)


@requirement("GRPC-SVC-05")
@pytest.mark.parametrize("added", ["add", "handlers"])
@pytest.mark.parametrize("method", [*METHODS, *STREAMED])
def test_generic_handlers_alone(grpc_library: LibraryTarget, method: str, added: str) -> None:
    """The server MUST serve all kinds of method from generic handlers alone, as grpcio does."""
    sent: Any = [b"one", b"two"] if method in STREAMED else b"one"

    def exchange(target: LibraryTarget) -> stock.Outcome:
        generic = _generic(**echoing(target.seen))
        served = target.serve(handlers=(generic,)) if added == "handlers" else target.serve(register=[_adding(generic)])
        return served.call(method, sent)

    messages = {"ClientStream": (b"onetwo",), "Bidi": (b"one", b"two")}.get(method, (b"one",))
    asserts.parity(grpc_library, exchange, expected=stock.Outcome("OK", "", messages))


@requirement("GRPC-SVC-06")
@pytest.mark.parametrize("first", ["generic", "registered"])
def test_registered_wins(grpc_library: LibraryTarget, first: str) -> None:
    """The server MUST prefer a registered handler to a generic one for a method, as grpcio does."""
    if not hasattr(importlib.import_module("grpc._cython.cygrpc").AioServer, "add_registered_method_handlers"):
        raise NotApplicable("old-grpcio", f"grpcio {grpc.__version__} has no registered handlers in asyncio")
    both = [_adding(_generic(Method=_says(b"generic"))), _registering(Method=_says(b"registered"))]

    def exchange(target: LibraryTarget) -> tuple[str, tuple[bytes, ...]]:
        return _said(target.serve(register=both if first == "generic" else both[::-1]), "Method")

    asserts.parity(grpc_library, exchange, expected=("OK", (b"registered",)))


@requirement("GRPC-SVC-07")
def test_method_in_the_generic_handler_only(grpc_library: LibraryTarget) -> None:
    """The server MUST find a method that only the generic handler of a registered service has, as grpcio does."""
    generic = _adding(_generic(Both=_says(b"generic"), Other=_says(b"other")))
    registered = _registering(Both=_says(b"registered"))

    def exchange(target: LibraryTarget) -> tuple[str, tuple[bytes, ...]]:
        return _said(target.serve(register=[generic, registered]), "Other")

    asserts.parity(grpc_library, exchange, expected=("OK", (b"other",)))


@requirement("GRPC-SVC-08")
def test_order_of_generic_handlers(grpc_library: LibraryTarget) -> None:
    """The server MUST ask generic handlers in their order; one of them may serve any path, as grpcio does."""
    handlers = [
        _generic(First=_says(b"first")),
        _generic(First=_says(b"late"), Second=_says(b"second")),
        CatchAll(lambda details: _says(details.method.encode())),
    ]
    paths = [path("First"), path("Second"), path("Third"), "/other.Service/Method", "/a"]

    def exchange(target: LibraryTarget) -> list[tuple[str, tuple[bytes, ...]]]:
        channel = target.serve(register=[_adding(*handlers)]).channel()
        outcomes = [stock.call(channel, one, timeout=target.timeout) for one in paths]
        return [(outcome.code, outcome.messages) for outcome in outcomes]

    said = [b"first", b"second", *(one.encode() for one in paths[2:])]
    asserts.parity(grpc_library, exchange, expected=[("OK", (text,)) for text in said])


@requirement("GRPC-SVC-09")
def test_generic_handler_that_raises(grpc_library: LibraryTarget) -> None:
    """The server SHOULD end a call with UNKNOWN whose generic handler raises, as grpcio does."""

    def raises(details: Any) -> Handler | None:
        raise ValueError("boom")

    def exchange(target: LibraryTarget) -> str:
        return target.serve(register=[_adding(CatchAll(raises))]).call("Method").code

    asserts.parity(grpc_library, exchange, expected="UNKNOWN")


@requirement("GRPC-SVC-10")
def test_no_handlers(grpc_library: LibraryTarget) -> None:
    """The server MUST answer every call with UNIMPLEMENTED when it has no handlers, as grpcio does."""

    def exchange(target: LibraryTarget) -> list[str]:
        channel = target.serve().channel()
        calls: list[tuple[str, Any]] = [(path("Method"), b"one"), (path("Stream"), [b"one", b"two"]), ("/a", b"")]
        return [stock.call(channel, one, sent, timeout=target.timeout).code for one, sent in calls]

    asserts.parity(grpc_library, exchange, expected=["UNIMPLEMENTED"] * 3)


MEGABYTE = 1 << 20
LOADS: dict[str, tuple[Sequence[bytes], grpc.Compression]] = {
    "hundred": ([b"%d" % number for number in range(100)], grpc.Compression.NoCompression),
    "empty": ((), grpc.Compression.NoCompression),
    "3mb": ([b"x" * (3 * MEGABYTE)], grpc.Compression.NoCompression),
    "gzip": ([b"a" * 1000, b"b" * 1000], grpc.Compression.Gzip),
    "deflate": ([b"a" * 1000, b"b" * 1000], grpc.Compression.Deflate),
}
streamed = pytest.mark.parametrize("method", STREAMED)


@requirement("GRPC-SVC-11")
@streamed
@pytest.mark.parametrize(("messages", "compression"), LOADS.values(), ids=LOADS.keys())
def test_request_streams(
    grpc_library: LibraryTarget, method: str, messages: Sequence[bytes], compression: grpc.Compression
) -> None:
    """The server MUST carry request streams of any size, compressed or not, as grpcio does."""

    def exchange(target: LibraryTarget) -> stock.Outcome:
        served = target.serve(echoing(target.seen))
        return served.call(method, messages, streaming=STREAMED[method], compression=compression)

    expected = tuple(messages) if method == "Bidi" else (b"".join(messages),)
    asserts.parity(grpc_library, exchange, expected=stock.Outcome("OK", "", expected))


@requirement("GRPC-SVC-11")
@streamed
def test_request_stream_over_the_limit(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST end a request stream with RESOURCE_EXHAUSTED whose message is too long, as grpcio does."""

    def exchange(target: LibraryTarget) -> tuple[str, tuple[bytes, ...]]:
        outcome = target.serve(echoing(target.seen)).call(method, [bytes(5 * MEGABYTE)], streaming=STREAMED[method])
        return outcome.code, outcome.messages

    asserts.parity(grpc_library, exchange, expected=("RESOURCE_EXHAUSTED", ()))


@requirement("GRPC-SVC-11")
def test_ping_pong(grpc_library: LibraryTarget) -> None:
    """The server MUST answer each message of a bidi stream before the next one comes, as grpcio does."""

    def exchange(target: LibraryTarget) -> tuple[list[bytes], str]:
        pongs: list[bytes] = []
        channel = target.serve(echoing(target.seen)).channel()
        turn = _Turns([b"1", b"2", b"3"])
        call = channel.stream_stream(path("Bidi"), None, None)(turn, timeout=target.timeout)
        try:
            for pong in call:
                pongs.append(pong)
                turn.give()
        except grpc.RpcError:
            pass
        return pongs, call.code().name

    asserts.parity(grpc_library, exchange, expected=([b"1", b"2", b"3"], "OK"))


class _Turns(Iterator[bytes]):
    """Requests that go out one at a time, the next one when it is given."""

    def __init__(self, messages: Iterable[bytes]) -> None:
        self._messages = iter(messages)
        self._turn = threading.Semaphore(1)

    def give(self) -> None:
        self._turn.release()

    def __next__(self) -> bytes:
        self._turn.acquire(timeout=60)  # The call's deadline ends it long before.
        return next(self._messages)


@requirement("GRPC-SVC-11")
@streamed
def test_metadata_of_request_streams(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST carry metadata both ways with request streams, as grpcio does."""

    def exchange(target: LibraryTarget) -> tuple[list[str], stock.Outcome]:
        async def joined(requests: Any, context: Any) -> bytes:
            await marked(context)
            return b"".join([request async for request in requests])

        async def each(requests: Any, context: Any) -> Any:
            await marked(context)
            async for request in requests:
                yield request

        async def marked(context: Any) -> None:
            target.seen.note("metadata", dict(context.invocation_metadata()).get("x-sent"))
            await context.send_initial_metadata((("x-initial", "first"),))
            context.set_trailing_metadata((("x-trailing-bin", b"\x00last"),))

        served = target.serve({"ClientStream": client_streaming(joined), "Bidi": bidi(each)})
        outcome = served.call(method, [b"one"], streaming=STREAMED[method], metadata=(("x-sent", "value"),))
        return target.seen.values("metadata"), outcome

    outcome = stock.Outcome("OK", "", (b"one",), (("x-initial", "first"),), (("x-trailing-bin", b"\x00last"),))
    asserts.parity(grpc_library, exchange, expected=(["value"], outcome))


@requirement("GRPC-SVC-12")
def test_context_of_generic_handlers(grpc_library: LibraryTarget) -> None:
    """The server SHOULD tell generic handlers the client's peer and deadline, as grpcio does."""

    def exchange(target: LibraryTarget) -> tuple[str, bool, bool]:
        async def tells(request: bytes, context: Any) -> bytes:
            left = context.time_remaining()
            target.seen.note("told", (context.peer().partition(":")[0], left is not None and 0 < left < 700))
            return b""

        served = target.serve(register=[_adding(_generic(Tells=unary(tells)))])
        served.call("Tells", timeout=600)
        kind, limited = asserts.seen(target, "told")[0]
        served.call("Tells", timeout=None)
        endless = asserts.seen(target, "told", count=2)[1][1]
        return kind, limited, endless

    asserts.parity(grpc_library, exchange, expected=("ipv4", True, False))


@requirement("GRPC-SVC-13")
def test_generic_handler_added_after_start(grpc_library: LibraryTarget) -> None:
    """The server SHOULD serve from a generic handler that is added after its start, as grpcio does."""

    def exchange(target: LibraryTarget) -> tuple[str, tuple[bytes, ...]]:
        served = target.serve({"Echo": ECHO})

        async def add() -> None:
            served.native.add_generic_rpc_handlers((_generic(Later=_says(b"later")),))

        target.run(add())
        return _said(served, "Later")

    asserts.parity(grpc_library, exchange, expected=("OK", (b"later",)))


REQUESTS = {
    "no_te": [field for field in request_fields(path("Bidi")) if field[0] != "te"],
    "get": [(name, "GET" if name == ":method" else value) for name, value in request_fields(path("Bidi"))],
}


@requirement("GRPC-SVC-14")
@pytest.mark.parametrize("fields", REQUESTS.values(), ids=REQUESTS.keys())
def test_errors_behind_the_server_stay_there(grpc_library: LibraryTarget, fields: Any) -> None:
    """The server MUST NOT answer an odd request with UNAVAILABLE, as if the fault were its own."""
    connection = grpc_library.serve(echoing(grpc_library.seen)).connect()
    stream = connection.start("", fields=fields)
    connection.send_message(stream, b"one", end_stream=True)
    answer = asserts.answered(connection, stream)
    asserts.true("the status is not UNAVAILABLE", answer.status != asserts.STATUS["UNAVAILABLE"], str(answer))
