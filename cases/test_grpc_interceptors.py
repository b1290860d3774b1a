"""Server interceptors: when they run, what they see, and what becomes of what they return."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    ECHO,
    LibraryTarget,
    bidi,
    client_streaming,
    echoing,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire.stock import Outcome

KINDS = ["Unary", "ServerStream", "ClientStream", "Bidi"]


class Intercepts(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    """An interceptor that does what a function of ``(continuation, details)`` does."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self._function = function

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        return await self._function(continuation, handler_call_details)


def _but_for_echo(function: Callable[[Any, Any], Any]) -> Intercepts:
    """An interceptor that leaves the method ``Echo`` alone."""

    async def intercepts(continuation: Any, details: Any) -> Any:
        return await (_goes_on if details.method == path("Echo") else function)(continuation, details)

    return Intercepts(intercepts)


def _requests(kind: str) -> Any:
    return b"ask" if kind in ("Unary", "ServerStream") else [b"ask"]


async def _goes_on(continuation: Any, details: Any) -> Any:
    return await continuation(details)


async def _answers(request: bytes, context: Any) -> bytes:
    return request


async def _returns_none(continuation: Any, details: Any) -> Any:
    return None


async def _returns_text(continuation: Any, details: Any) -> Any:
    return "no handler"


async def _raises(continuation: Any, details: Any) -> Any:
    raise ValueError("intercepted")


async def _is_cancelled(continuation: Any, details: Any) -> Any:
    raise asyncio.CancelledError


@requirement("GRPC-INT-01")
@pytest.mark.parametrize("method", [*KINDS, "Unknown"])
def test_interceptors_run_once_in_order(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST run its interceptors once for each call, in the order of their list."""

    def exchange(target: LibraryTarget) -> Any:
        def noting(name: str) -> Intercepts:
            async def notes(continuation: Any, details: Any) -> Any:
                target.seen.note(name)
                return await continuation(details)

            return Intercepts(notes)

        served = target.serve(echoing(target.seen), interceptors=[noting("first"), noting("second")])
        outcome = served.call(method, _requests(method))
        return outcome.code, [name for name in target.seen.names if name in ("first", "second")]

    code = "UNIMPLEMENTED" if method == "Unknown" else "OK"
    asserts.parity(grpc_library, exchange, expected=(code, ["first", "second"]))


@requirement("GRPC-INT-02")
def test_call_details_are_path_and_metadata(grpc_library: LibraryTarget) -> None:
    """The server MUST give interceptors the full path as str, and the metadata as named pairs."""

    def exchange(target: LibraryTarget) -> Any:
        async def looks(continuation: Any, details: Any) -> Any:
            metadata = details.invocation_metadata
            target.seen.note("method", details.method)
            target.seen.note("is a tuple", isinstance(metadata, tuple))
            target.seen.note("holds the pair", ("x-key", "value") in metadata)
            target.seen.note("fields", [item.value for item in metadata if item.key == "x-key"])
            return await continuation(details)

        served = target.serve({"Echo": ECHO}, interceptors=[Intercepts(looks)])
        outcome = served.call("Echo", b"", metadata=(("x-key", "value"),))
        return outcome.code, [target.seen.values(name) for name in target.seen.names]

    asserts.parity(grpc_library, exchange, expected=("OK", [[path("Echo")], [True], [True], [["value"]]]))


@requirement("GRPC-INT-03")
@pytest.mark.parametrize("kind", KINDS)
def test_interceptor_that_returns_none_is_unimplemented(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST end a call UNIMPLEMENTED whose interceptor returns no handler."""

    def exchange(target: LibraryTarget) -> Any:
        served = target.serve(echoing(target.seen), interceptors=[Intercepts(_returns_none)])
        return served.call(kind, _requests(kind)), target.seen.names

    asserts.parity(grpc_library, exchange, expected=(Outcome("UNIMPLEMENTED", "Method not found!"), []))


@requirement("GRPC-INT-04")
@pytest.mark.parametrize("kind", KINDS)
def test_exception_in_an_interceptor_is_unknown(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST end a call UNKNOWN, naming the exception, whose interceptor raises."""

    def exchange(target: LibraryTarget) -> Any:
        served = target.serve(echoing(target.seen), interceptors=[Intercepts(_raises)])
        return served.call(kind, _requests(kind)), target.seen.names

    details = "Unexpected <class 'ValueError'>: intercepted"
    asserts.parity(grpc_library, exchange, expected=(Outcome("UNKNOWN", details), []))


@requirement("GRPC-INT-04")
def test_cancelled_error_in_an_interceptor_ends_the_call(grpc_library: LibraryTarget) -> None:
    """The server MUST NOT leave a call open whose interceptor raises CancelledError."""
    handlers = {**echoing(grpc_library.seen), "Echo": ECHO}
    connection = grpc_library.serve(handlers, interceptors=[_but_for_echo(_is_cancelled)]).connect()
    [answer] = asserts.settled(connection, [connection.call(path("Unary"))], path("Echo"))
    asserts.true("the call has ended", answer.ended, str(answer))
    asserts.fails(answer)


def _denials() -> dict[str, Any]:
    async def one(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "denied")

    async def many(request: Any, context: Any) -> Any:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "denied")
        yield b""

    return {
        "unary": unary(one),
        "server-streaming": server_streaming(many),
        "client-streaming": client_streaming(one),
        "bidi": bidi(many),
    }


@requirement("GRPC-INT-05")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("denial", ["unary", "server-streaming", "client-streaming", "bidi"])
def test_returned_handler_runs_by_its_own_kind(grpc_library: LibraryTarget, kind: str, denial: str) -> None:
    """The server MUST run the handler that an interceptor returns by the handler's own kind."""

    def exchange(target: LibraryTarget) -> Any:
        async def denies(continuation: Any, details: Any) -> Any:
            return _denials()[denial]

        served = target.serve(echoing(target.seen), interceptors=[Intercepts(denies)])
        return served.call(kind, _requests(kind)), target.seen.names

    asserts.parity(grpc_library, exchange, expected=(Outcome("PERMISSION_DENIED", "denied"), []))


@requirement("GRPC-INT-06")
def test_interceptor_that_returns_no_handler_is_unknown(grpc_library: LibraryTarget) -> None:
    """The server SHOULD end a call UNKNOWN whose interceptor returns something else than a handler."""

    def exchange(target: LibraryTarget) -> Any:
        handlers = {**echoing(target.seen), "Echo": ECHO}
        connection = target.serve(handlers, interceptors=[_but_for_echo(_returns_text)]).connect()
        [answer] = asserts.settled(connection, [connection.call(path("Unary"))], path("Echo"))
        return answer.status

    asserts.parity(grpc_library, exchange, expected=asserts.STATUS["UNKNOWN"])


@requirement("GRPC-INT-07")
@pytest.mark.parametrize("replacement", ["async", "sync"])
def test_wrapped_unary_handler_serves(grpc_library: LibraryTarget, replacement: str) -> None:
    """The server MUST serve a unary handler that an interceptor wraps, a sync one in the pool."""

    def exchange(target: LibraryTarget) -> Any:
        async def loop_thread() -> int:
            return threading.get_ident()

        loop = target.run(loop_thread())

        async def wraps(continuation: Any, details: Any) -> Any:
            inner = await continuation(details)

            async def around(request: bytes, context: Any) -> Any:
                return b"<" + await inner.unary_unary(request, context) + b">"

            def in_pool(request: bytes, context: Any) -> Any:
                target.seen.note("on the loop", threading.get_ident() == loop)
                return b"<" + request + b">"

            return grpc.unary_unary_rpc_method_handler(
                around if replacement == "async" else in_pool,
                request_deserializer=inner.request_deserializer,
                response_serializer=inner.response_serializer,
            )

        handler: Any = grpc.unary_unary_rpc_method_handler(
            _answers,
            request_deserializer=lambda octets: octets.upper(),
            response_serializer=lambda message: message + b"!",
        )
        served = target.serve({"Echo": handler}, interceptors=[Intercepts(wraps)])
        return served.call("Echo", b"ask"), target.seen.values("on the loop")

    on_loop = [] if replacement == "async" else [False]
    asserts.parity(grpc_library, exchange, expected=(Outcome("OK", "", (b"<ASK>!",)), on_loop))


@requirement("GRPC-INT-07")
def test_wrapped_streaming_handler_serves(grpc_library: LibraryTarget) -> None:
    """The server MUST serve a streaming handler that an interceptor wraps."""

    def exchange(target: LibraryTarget) -> Any:
        async def wraps(continuation: Any, details: Any) -> Any:
            inner = await continuation(details)

            async def around(request: bytes, context: Any) -> Any:
                async for response in inner.unary_stream(request, context):
                    yield b"<" + response + b">"
                yield b"end"

            return server_streaming(around)

        served = target.serve(echoing(target.seen), interceptors=[Intercepts(wraps)])
        return served.call("ServerStream", b"ask")

    asserts.parity(grpc_library, exchange, expected=Outcome("OK", "", (b"<ask>", b"end")))


@requirement("GRPC-INT-08")
def test_continuation_may_be_called_twice(grpc_library: LibraryTarget) -> None:
    """The server SHOULD let an interceptor call `continuation` twice."""

    def exchange(target: LibraryTarget) -> Any:
        async def twice(continuation: Any, details: Any) -> Any:
            await continuation(details)
            return await continuation(details)

        return target.serve({"Echo": ECHO}, interceptors=[Intercepts(twice)]).call("Echo", b"ask")

    asserts.parity(grpc_library, exchange, expected=Outcome("OK", "", (b"ask",)))


class Details(grpc.HandlerCallDetails):
    """Call details of an interceptor's own making."""

    def __init__(self, method: str, metadata: Any) -> None:
        self.method = method
        self.invocation_metadata = metadata


@requirement("GRPC-INT-09")
def test_altered_call_details_are_not_ignored(grpc_library: LibraryTarget) -> None:
    """The server SHOULD honour altered call details that go to `continuation`, or fail the call."""

    async def redirects(continuation: Any, details: Any) -> Any:
        return await continuation(Details(path("Other"), details.invocation_metadata))

    async def other(request: bytes, context: Any) -> bytes:
        return b"other"

    handlers = {"Echo": ECHO, "Other": unary(other)}
    connection = grpc_library.serve(handlers, interceptors=[Intercepts(redirects)]).connect()
    answer = asserts.answered(connection, connection.call(path("Echo"), b"ask"))
    honoured = answer.status == 0 and answer.payloads == (b"other",)
    asserts.true("the altered method is served, or the call fails", honoured or answer.status != 0, str(answer))


def _calls_continuation_without_details(target: LibraryTarget) -> list[Any]:
    """What the call, and a later call, ended with."""

    async def without(continuation: Any, details: Any) -> Any:
        return await continuation(details if details.method == path("Echo") else None)

    handlers = {**echoing(target.seen), "Echo": ECHO}
    served = target.serve(handlers, interceptors=[Intercepts(without)])
    return [served.call("Unary", b"ask").code, served.call("Echo", b"ask").code]


@requirement("GRPC-INT-10")
def test_continuation_without_details_harms_nobody(grpc_library: LibraryTarget) -> None:
    """The server SHOULD survive an interceptor that calls `continuation(None)`."""
    ended = grpc_library.in_child(_calls_continuation_without_details)
    asserts.equal("the exit code of the server's process", 0, ended.code)
    asserts.equal("the status of a later call", "OK", (ended.result or [None, None])[1])


class SyncInterceptor(grpc.ServerInterceptor):  # type: ignore[type-arg]
    """An interceptor of grpcio's synchronous server."""

    def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        return continuation(handler_call_details)


@requirement("GRPC-INT-11")
@pytest.mark.parametrize("entry", [object(), SyncInterceptor()], ids=["object", "sync-interceptor"])
def test_constructor_refuses_what_is_no_interceptor(grpc_library: LibraryTarget, entry: object) -> None:
    """The server MUST raise ValueError for an entry of the list that is no aio interceptor."""

    def exchange(target: LibraryTarget) -> str:
        try:
            target.serve({"Echo": ECHO}, interceptors=[entry])
        except Exception as error:
            return type(error).__name__
        return "no error"

    asserts.parity(grpc_library, exchange, expected="ValueError")


@requirement("GRPC-INT-12")
def test_denial_needs_no_request_body(grpc_library: LibraryTarget) -> None:
    """The server SHOULD run interceptors when the headers arrive, before any message."""

    def exchange(target: LibraryTarget) -> Any:
        async def denies(continuation: Any, details: Any) -> Any:
            target.seen.note("ran")
            return _denials()["unary"]

        handlers = {**echoing(target.seen), "Echo": ECHO}
        connection = target.serve(handlers, interceptors=[_but_for_echo(denies)]).connect()
        connection.start(path("Unary"))
        asserts.still_serves(connection, path("Echo"))  # By then the headers have long arrived.
        return len(target.seen.wait("ran", max(1.0, target.timeout / 10)))

    asserts.parity(grpc_library, exchange, expected=1)


@requirement("GRPC-HND-18")
def test_context_variables_of_an_interceptor_reach_its_handler_only(grpc_library: LibraryTarget) -> None:
    """The server MUST show a handler the context variables that an interceptor set for its call."""
    variable = contextvars.ContextVar("variable", default="default")

    def exchange(target: LibraryTarget) -> Any:
        async def sets(continuation: Any, details: Any) -> Any:
            given = dict(details.invocation_metadata).get("x-set")
            if given is not None:
                variable.set(given)
            return await continuation(details)

        async def shows(request: bytes, context: Any) -> bytes:
            return variable.get().encode()

        served = target.serve({"Method": unary(shows)}, interceptors=[Intercepts(sets)])
        metadata: list[tuple[tuple[str, str], ...]] = [(("x-set", "one"),), (), (("x-set", "two"),)]
        return [served.call("Method", metadata=each).messages for each in metadata]

    asserts.parity(grpc_library, exchange, expected=[(b"one",), (b"default",), (b"two",)])
