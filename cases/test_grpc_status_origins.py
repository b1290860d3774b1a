"""Where a status comes from: the calls that a handler makes, the exceptions that escape it, and the server itself."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.protocols.openengine.bindings import openengine_pb2_grpc
from pytest_grpc_conformance.targets.library import (
    ECHO,
    LibraryTarget,
    Served,
    bidi,
    client_streaming,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire import stock
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import RawConnection, request_fields
from pytest_grpc_conformance.wire.frames import ErrorCode

LEFT_OPEN = "left open"
NAMES = {number: name for name, number in asserts.STATUS.items()}


def _ending(answer: Answer) -> str:
    """The status of an answer by name, or what came in its place."""
    if not answer.ended:
        return LEFT_OPEN
    return str(answer) if answer.status is None else NAMES.get(answer.status, str(answer.status))


def _answers(target: LibraryTarget, handler: Callable[..., Any], requests: Sequence[bytes]) -> list[Answer]:
    """The answers of a unary handler that waits for nothing to calls without a deadline, all on one connection."""
    connection = target.serve({"Method": unary(handler), "Echo": ECHO}).connect()
    streams = [connection.call(path("Method"), request) for request in requests]
    return asserts.settled(connection, streams, path("Echo"))


async def _set_in_unary(request: bytes, context: Any) -> bytes:
    context.set_code(grpc.StatusCode.NOT_FOUND)
    context.set_details("nothing here")
    return b"response"


async def _set_in_stream(request: bytes, context: Any) -> Any:
    yield b"response"
    context.set_code(grpc.StatusCode.NOT_FOUND)
    context.set_details("nothing here")


KINDS = {
    "unary": (unary(_set_in_unary), b"", ()),
    "server_streaming": (server_streaming(_set_in_stream), b"", (b"response",)),
    "client_streaming": (client_streaming(_set_in_unary), (), ()),
    "bidi": (bidi(_set_in_stream), (), (b"response",)),
}


@requirement("GRPC-STATUS-14")
@pytest.mark.parametrize(("handler", "requests", "messages"), KINDS.values(), ids=KINDS.keys())
def test_set_code_and_return(
    grpc_library: LibraryTarget, handler: Any, requests: Any, messages: tuple[bytes, ...]
) -> None:
    """The server MUST end a call with the code that its handler set before a return, as grpcio does."""

    def exchange(target: LibraryTarget) -> stock.Outcome:
        return target.serve({"Sets": handler}).call("Sets", requests, streaming=handler.response_streaming)

    asserts.parity(grpc_library, exchange, expected=stock.Outcome("NOT_FOUND", "nothing here", messages))


@requirement("GRPC-STATUS-15")
def test_set_code_ok_with_details(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call with OK after `set_code(OK)` and `set_details`, as grpcio does."""

    async def sets(request: bytes, context: Any) -> bytes:
        context.set_code(grpc.StatusCode.OK)
        context.set_details("x")
        return request

    def exchange(target: LibraryTarget) -> tuple[str, tuple[bytes, ...]]:
        outcome = target.serve({"Sets": unary(sets)}).call("Sets", b"request")
        return outcome.code, outcome.messages

    asserts.parity(grpc_library, exchange, expected=("OK", (b"request",)))


def _codes(target: LibraryTarget, given: Sequence[tuple[str, Any]]) -> list[tuple[str, str]]:
    """The statuses and details of calls whose handlers give a code by ``set_code`` or by ``abort``."""

    async def gives(request: bytes, context: Any) -> bytes:
        way, code = given[int(request)]
        if way == "abort":
            await context.abort(code, "as given")
        context.set_code(code)
        context.set_details("as given")
        return b""

    answers = _answers(target, gives, [b"%d" % at for at in range(len(given))])
    return [(_ending(answer), answer.details) for answer in answers]


@requirement("GRPC-STATUS-16")
def test_integer_codes(grpc_library: LibraryTarget) -> None:
    """The server MUST take an integer for the code of that number, as grpcio does."""
    # Without abort(0), which grpcio never ends, and 16, which it takes for UNKNOWN.
    given = [("set_code", number) for number in range(16)] + [("abort", number) for number in range(1, 16)]

    def exchange(target: LibraryTarget) -> dict[str, str]:
        answers = _codes(target, given)
        return {f"{way}({code})": status for (way, code), (status, _) in zip(given, answers, strict=True)}

    asserts.parity(grpc_library, exchange, expected={f"{way}({code})": NAMES[code] for way, code in given})


@requirement("GRPC-STATUS-17")
def test_codes_that_are_none(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call with UNKNOWN and its details whose code is none of gRPC's, as grpcio does."""
    codes = [99, -1, "NOT_FOUND", (5, "not found"), 5.0]
    given = [*((way, code) for way in ("set_code", "abort") for code in codes), ("abort", None)]

    def exchange(target: LibraryTarget) -> dict[str, tuple[str, str]]:
        answers = _codes(target, given)
        return {f"{way}({code!r})": answer for (way, code), answer in zip(given, answers, strict=True)}

    expected = {f"{way}({code!r})": ("UNKNOWN", "as given") for way, code in given}
    asserts.parity(grpc_library, exchange, expected=expected)


@requirement("GRPC-STATUS-18")
def test_set_code_none(grpc_library: LibraryTarget) -> None:
    """The server SHOULD end a call with UNKNOWN after `set_code(None)`, as grpcio does."""
    asserts.parity(grpc_library, lambda target: _codes(target, [("set_code", None)])[0][0], expected="UNKNOWN")


@requirement("GRPC-STATUS-19")
@pytest.mark.parametrize("count", [0, 2], ids=lambda count: f"messages={count}")
def test_escaping_exception_is_unknown(grpc_library: LibraryTarget, count: int) -> None:
    """The server MUST end a call whose handler raises with UNKNOWN, after the messages that it had sent."""

    async def raises(request: bytes, context: Any) -> Any:
        for number in range(count):
            yield b"%d" % number
        raise ValueError("boom")

    def exchange(target: LibraryTarget) -> stock.Outcome:
        return target.serve({"Raises": server_streaming(raises)}).call("Raises")

    messages = tuple(b"%d" % number for number in range(count))
    expected = stock.Outcome("UNKNOWN", "Unexpected <class 'ValueError'>: boom", messages)
    asserts.parity(grpc_library, exchange, expected=expected)


@requirement("GRPC-STATUS-20")
def test_exception_after_set_code(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call that raises after `set_code` with that code and the exception's text."""

    async def raises(request: bytes, context: Any) -> bytes:
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("nothing here")
        raise ValueError("boom")

    def exchange(target: LibraryTarget) -> stock.Outcome:
        return target.serve({"Raises": unary(raises)}).call("Raises")

    expected = stock.Outcome("NOT_FOUND", "Unexpected <class 'ValueError'>: boom")
    asserts.parity(grpc_library, exchange, expected=expected)


@requirement("GRPC-STATUS-21")
@pytest.mark.parametrize("count", [0, 1], ids=lambda count: f"messages={count}")
def test_trailing_metadata_with_exception(grpc_library: LibraryTarget, count: int) -> None:
    """The server MUST send the trailing metadata that a handler had set before it raised, as grpcio does."""

    async def raises(request: bytes, context: Any) -> Any:
        context.set_trailing_metadata((("x-text", "kept"), ("x-octets-bin", b"\x00\xff")))
        for _ in range(count):
            yield b"message"
        raise ValueError("boom")

    def exchange(target: LibraryTarget) -> tuple[str, stock.Metadata]:
        outcome = target.serve({"Raises": server_streaming(raises)}).call("Raises")
        return outcome.code, outcome.trailing

    expected = ("UNKNOWN", (("x-octets-bin", b"\x00\xff"), ("x-text", "kept")))
    asserts.parity(grpc_library, exchange, expected=expected)


class _Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


@requirement("GRPC-STATUS-22")
def test_exception_without_usable_text(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call with an error whose exception has a text that cannot be had or sent."""
    failures = [ValueError("half \ud800"), _Unprintable()]

    async def raises(request: bytes, context: Any) -> bytes:
        raise failures[int(request)]

    answers = _answers(grpc_library, raises, [b"%d" % at for at in range(len(failures))])
    for failure, answer in zip(failures, answers, strict=True):
        asserts.true(f"the call that raised {type(failure).__name__} has ended", answer.ended, str(answer))
        asserts.fails(answer)


@requirement("GRPC-STATUS-23")
def test_details_that_cannot_be_encoded(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call whose details cannot be encoded, with its code, INTERNAL or UNKNOWN."""

    async def fails(request: bytes, context: Any) -> bytes:
        if request == b"abort":
            await context.abort(grpc.StatusCode.NOT_FOUND, "half \ud800")
        context.set_code(grpc.StatusCode.NOT_FOUND)
        context.set_details("half \ud800")
        return b""

    for answer in _answers(grpc_library, fails, [b"abort", b"set_details"]):
        asserts.true("the call has ended", answer.ended, str(answer))
        asserts.ended_with(answer, "NOT_FOUND", "INTERNAL", "UNKNOWN")


@requirement("GRPC-STATUS-24")
def test_details_of_another_type(grpc_library: LibraryTarget) -> None:
    """The server MUST raise TypeError in a handler whose details are no text, and end the call, as grpcio does."""
    given: list[tuple[str, Any]] = [(way, details) for way in ("abort", "set_details") for details in (b"octets", 5)]

    def exchange(target: LibraryTarget) -> dict[str, tuple[list[str], str]]:
        async def fails(request: bytes, context: Any) -> bytes:
            way, details = given[int(request)]
            try:
                if way == "abort":
                    await context.abort(grpc.StatusCode.NOT_FOUND, details)
                else:
                    context.set_details(details)
            except BaseException as error:
                target.seen.note(f"{way}({details!r})", type(error).__name__)
                raise
            return b""

        answers = _answers(target, fails, [b"%d" % at for at in range(len(given))])
        names = [f"{way}({details!r})" for way, details in given]
        return {name: (target.seen.values(name), _ending(answer)) for name, answer in zip(names, answers, strict=True)}

    expected = {f"{way}({details!r})": (["TypeError"], "UNKNOWN") for way, details in given}
    asserts.parity(grpc_library, exchange, expected=expected)


@requirement("GRPC-STATUS-25")
@pytest.mark.parametrize("method", ["Generate", "GetServerInfo"])
def test_generated_base_method(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST end a call of a generated base method with the UNIMPLEMENTED that it sets, as grpcio does."""

    def register(server: Any) -> None:
        openengine_pb2_grpc.add_InferenceServicer_to_server(openengine_pb2_grpc.InferenceServicer(), server)
        openengine_pb2_grpc.add_ControlServicer_to_server(openengine_pb2_grpc.ControlServicer(), server)

    service = "Inference" if method == "Generate" else "Control"

    def exchange(target: LibraryTarget) -> stock.Outcome:
        served = target.serve(register=[register])
        return stock.call(served.channel(), f"/openengine.v1.{service}/{method}", timeout=served.timeout)

    outcome = asserts.parity(grpc_library, exchange)
    asserts.equal("the status", "UNIMPLEMENTED", outcome.code)


def _undecodable(octets: bytes) -> bytes:
    raise ValueError("these octets are no message")


async def _echo(request: bytes, context: Any) -> bytes:
    return request


async def _raises(request: bytes, context: Any) -> bytes:
    raise ValueError("boom")


async def _waits(request: bytes, context: Any) -> bytes:
    await asyncio.Event().wait()
    return b""


PROVOKED: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "unknown_method": ("Missing", {}, {}),
    "exception": ("Raises", {}, {}),
    "undecodable": ("Undecodable", {}, {}),
    "unencodable": ("Unencodable", {}, {}),
    "deadline": ("Waits", {"timeout": "5m"}, {}),
    "too_long": ("Echo", {}, {"payload": bytes(1_000)}),
    "reserved_flag": ("Echo", {}, {"flag": 3}),
    "no_encoding": ("Echo", {}, {"flag": 1}),
    "unknown_encoding": ("Echo", {"metadata": [("grpc-encoding", "unheard-of")]}, {"flag": 1}),
    "bad_timeout": ("Echo", {"timeout": "soon"}, {}),
    "no_grpc_type": ("Echo", {"fields": [*request_fields(path("Echo"))[:-1], ("content-type", "text/plain")]}, {}),
}
FOREIGN = {
    asserts.STATUS[name]: name
    for name in (
        "INVALID_ARGUMENT",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "DATA_LOSS",
    )
}
"""Codes that the status document keeps for applications."""


@requirement("GRPC-STATUS-26")
@pytest.mark.parametrize(("method", "start", "sent"), PROVOKED.values(), ids=PROVOKED.keys())
def test_codes_of_applications(
    grpc_library: LibraryTarget, method: str, start: dict[str, Any], sent: dict[str, Any]
) -> None:
    """The server SHOULD leave the codes to handlers that gRPC libraries never generate."""
    handlers = {
        "Echo": ECHO,
        "Raises": unary(_raises),
        "Waits": unary(_waits),
        "Undecodable": grpc.unary_unary_rpc_method_handler(_echo, request_deserializer=_undecodable),
        "Unencodable": grpc.unary_unary_rpc_method_handler(_echo, response_serializer=_undecodable),
    }
    connection = grpc_library.serve(handlers, options=[("grpc.max_receive_message_length", 100)]).connect()
    stream = connection.start(path(method), **start)
    connection.send_message(stream, **{"payload": b"request", "end_stream": True, **sent})
    answer = asserts.answered(connection, stream)
    asserts.true("the server has not taken a code of applications", answer.status not in FOREIGN, str(answer))


def _call_while_stopping(connection: RawConnection) -> str:
    """How one call on a connection ends: its status, or the one that a client derives."""
    stream = connection.call(path("Echo"))

    def refused() -> bool:
        goaways = connection.received.goaways()
        return bool(connection.closed) or any(stream > goaway.last_stream_id for goaway in goaways)

    with asserts.owed("an answer, or GOAWAY, while the server stops"):
        connection.wait(lambda: refused() or connection.received.ended(stream), f"the end of stream {stream}")
    answer = connection.so_far(stream)
    never_looked_at = answer.reset == ErrorCode.REFUSED_STREAM or not connection.received.ended(stream)
    return "UNAVAILABLE" if never_looked_at else _ending(answer)


@contextlib.contextmanager
def _stopping(target: LibraryTarget, *, acknowledges: bool) -> Iterator[tuple[Served, str]]:
    """A server that stops while a stream runs, and the status of the first call that it refuses.

    A call that the server gets before it has begun to stop may still be served; the next one is not.
    """
    release = asyncio.Event()

    async def holds(request: bytes, context: Any) -> Any:
        yield b"held"
        await release.wait()

    async def let_go() -> None:
        release.set()

    served = target.serve({"Holds": server_streaming(holds), "Echo": ECHO})
    connection = served.connect(acknowledges=acknowledges)
    held = connection.call(path("Holds"))
    with asserts.owed("the first message of a held stream"):
        connection.wait_messages(held, 1)
    served.begin_stop(served.timeout)
    try:
        while (status := _call_while_stopping(connection)) == "OK":
            pass
        yield served, status
    finally:
        target.run(let_go())


@requirement("GRPC-STATUS-27")
def test_call_to_a_stopping_server(grpc_library: LibraryTarget) -> None:
    """The server MUST refuse a call while it stops with UNAVAILABLE, or so that a client derives that."""
    # Without acknowledgements the server stays between its two GOAWAYs, where new streams are legal yet.
    with _stopping(grpc_library, acknowledges=False) as (_, status):
        asserts.equal("the status of a refused call", "UNAVAILABLE", status)


@requirement("GRPC-STATUS-27")
def test_connection_to_a_stopping_server(grpc_library: LibraryTarget) -> None:
    """The server MUST refuse calls on new connections while it stops, so that clients get UNAVAILABLE."""
    with _stopping(grpc_library, acknowledges=True) as (served, _):
        asserts.equal("the status of a refused call", "UNAVAILABLE", served.call("Echo").code)
