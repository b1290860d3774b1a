"""Done-callbacks, the context after the end of its call, and the context of handlers that are no coroutines."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Iterator, Sequence
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

NOT_FOUND = grpc.StatusCode.NOT_FOUND


async def _raised(call: Awaitable[Any]) -> str:
    """What a call of the context raises: the class of grpc.aio that it belongs to, or else its own."""
    try:
        await call
    except Exception as error:
        known = [kind.__name__ for kind in (grpc.aio.AbortError, grpc.aio.UsageError) if isinstance(error, kind)]
        return [*known, type(error).__name__][0]
    return "nothing"


async def _succeeds(context: Any) -> None:
    return None


async def _raises(context: Any) -> None:
    raise ValueError("boom")


async def _aborts(context: Any) -> None:
    await context.abort(NOT_FOUND, "nothing here")


async def _is_cancelled(context: Any) -> None:
    await asyncio.Event().wait()


ENDINGS = {"success": _succeeds, "exception": _raises, "abort": _aborts}


def _end(target: LibraryTarget, prepare: Callable[[Any], None], end: Callable[[Any], Awaitable[None]]) -> None:
    """Make a call that ends in some way, with what a handler does before, and another call after it."""

    async def ends(request: bytes, context: Any) -> bytes:
        prepare(context)
        target.seen.note("prepared", context)
        await end(context)
        return b"response"

    connection = target.serve({"Ends": unary(ends), "Echo": ECHO}).connect()
    stream = connection.call(path("Ends"))
    target.seen.wait("prepared", target.timeout)
    if end is _is_cancelled:
        connection.reset(stream)
    else:
        connection.answer(stream)
    connection.unary(path("Echo"))


@requirement("GRPC-CTX-25")
@pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS.keys())
def test_done_in_callback(grpc_library: LibraryTarget, end: Callable[[Any], Awaitable[None]]) -> None:
    """The server MUST return False from `done()` while the handler runs, and True in done-callbacks."""

    def exchange(target: LibraryTarget) -> list[Any]:
        def prepare(context: Any) -> None:
            target.seen.note("done", context.done())
            context.add_done_callback(lambda _: target.seen.note("done", context.done()))

        _end(target, prepare, end)
        return target.seen.wait("done", target.timeout, count=2)

    asserts.parity(grpc_library, exchange, expected=[False, True])


@requirement("GRPC-CTX-25")
def test_done_after_abort(grpc_library: LibraryTarget) -> None:
    """The server MUST return True from `done()` after `abort`, while the handler still runs."""

    def exchange(target: LibraryTarget) -> list[Any]:
        async def aborts(context: Any) -> None:
            try:
                await context.abort(NOT_FOUND, "nothing here")
            finally:
                target.seen.note("done", context.done())

        _end(target, lambda context: None, aborts)
        return target.seen.wait("done", target.timeout)

    asserts.parity(grpc_library, exchange, expected=[True])


@requirement("GRPC-CTX-26")
@pytest.mark.parametrize("end", [*ENDINGS.values(), _is_cancelled], ids=[*ENDINGS, "cancellation"])
def test_done_callbacks(grpc_library: LibraryTarget, end: Callable[[Any], Awaitable[None]]) -> None:
    """The server MUST call done-callbacks once, in order, with the context alone, however a call ends."""

    def exchange(target: LibraryTarget) -> list[Any]:
        def prepare(context: Any) -> None:
            for number in range(3):
                context.add_done_callback(
                    lambda *given, number=number: target.seen.note("called", (number, list(given) == [context]))
                )

        _end(target, prepare, end)
        target.seen.wait("called", target.timeout, count=3)
        target.run(asyncio.sleep(0))  # A second call would have been made by now.
        return target.seen.values("called")

    asserts.parity(grpc_library, exchange, expected=[(0, True), (1, True), (2, True)])


class _Records(logging.Handler):
    """Notes the exception of each record."""

    def __init__(self, note: Callable[[str, Any], None]) -> None:
        super().__init__()
        self._note = note

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if isinstance(error, ZeroDivisionError):
            self._note("logged", str(error))


@contextlib.contextmanager
def _logging_to(note: Callable[[str, Any], None]) -> Iterator[None]:
    records = _Records(note)
    logging.getLogger().addHandler(records)
    try:
        yield
    finally:
        logging.getLogger().removeHandler(records)


@requirement("GRPC-CTX-27")
def test_done_callback_that_raises(grpc_library: LibraryTarget) -> None:
    """The server SHOULD log what a done-callback raises, and not be disturbed by it, as grpcio does."""

    def exchange(target: LibraryTarget) -> tuple[Any, ...]:
        def raises(context: Any) -> None:
            raise ZeroDivisionError("in a callback")

        async def ends(request: bytes, context: Any) -> bytes:
            context.add_done_callback(raises)
            return b"response"

        connection = target.serve({"Ends": unary(ends), "Echo": ECHO}).connect()
        with _logging_to(target.seen.note):
            ended = connection.unary(path("Ends"))
            logged = target.seen.wait("logged", target.timeout)
        later = connection.unary(path("Echo"), b"later")
        return ended.status, ended.payloads, logged, later.status, later.payloads

    expected = (0, (b"response",), ["in a callback"], 0, (b"later",))
    asserts.parity(grpc_library, exchange, expected=expected)


def _after_the_end(target: LibraryTarget, kind: str, use: Callable[[Any], Awaitable[str]]) -> str:
    """What a use of the context gives once its call, of an OK status, is over."""

    def keep(context: Any) -> None:
        target.seen.note("kept", context)
        context.add_done_callback(lambda _: target.seen.note("over"))

    async def one_response(request: Any, context: Any) -> bytes:
        keep(context)
        return b"response"

    async def responses(request: Any, context: Any) -> Any:
        keep(context)
        yield b"response"

    handlers = {"unary": unary(one_response), "server_streaming": server_streaming(responses), "bidi": bidi(responses)}
    answer = target.serve({"Ends": handlers[kind]}).connect().unary(path("Ends"))
    if not target.seen.values("kept"):
        return f"the handler was not called: {answer}"
    target.seen.wait("over", target.timeout)
    [context] = target.seen.values("kept")
    return target.run(_async(use, context))


async def _async(use: Callable[[Any], Awaitable[str]], context: Any) -> str:
    return await use(context)


@requirement("GRPC-CTX-28")
def test_done_callback_added_after_the_end(grpc_library: LibraryTarget) -> None:
    """The server SHOULD NOT raise from `add_done_callback` after the end of the call."""

    async def use(context: Any) -> str:
        async def adds() -> None:
            context.add_done_callback(lambda _: None)

        return await _raised(adds())

    asserts.parity(grpc_library, lambda target: _after_the_end(target, "unary", use), expected="nothing")


USES: dict[str, Callable[[Any], Awaitable[Any]]] = {
    "read": lambda context: context.read(),
    "write": lambda context: context.write(b"late"),
    "send_initial_metadata": lambda context: context.send_initial_metadata((("key", "late"),)),
}


@requirement("GRPC-CTX-29")
@pytest.mark.parametrize(
    ("kind", "use"),
    [
        ("unary", "read"),
        ("bidi", "read"),
        ("server_streaming", "write"),
        ("unary", "send_initial_metadata"),
        ("server_streaming", "send_initial_metadata"),
    ],
    ids=["unary_read", "bidi_read", "stream_write", "unary_metadata", "stream_metadata"],
)
def test_use_after_the_end(grpc_library: LibraryTarget, kind: str, use: str) -> None:
    """The server MUST raise `UsageError` from `read`, `write` and `send_initial_metadata` after the end."""
    asserts.parity(
        grpc_library,
        lambda target: _after_the_end(target, kind, lambda context: _raised(USES[use](context))),
        expected="UsageError",
    )


async def _set_code(context: Any) -> None:
    context.set_code(grpc.StatusCode.OK)


async def _set_details(context: Any) -> None:
    context.set_details("late")


async def _set_trailing_metadata(context: Any) -> None:
    context.set_trailing_metadata((("key", "late"),))


@requirement("GRPC-CTX-30")
@pytest.mark.parametrize("use", [_set_code, _set_details, _set_trailing_metadata], ids=["code", "details", "metadata"])
def test_setters_after_the_end(grpc_library: LibraryTarget, use: Callable[[Any], Awaitable[None]]) -> None:
    """The server MUST NOT raise from the setters of code, details and metadata after the end of the call."""
    asserts.parity(
        grpc_library,
        lambda target: _after_the_end(target, "unary", lambda context: _raised(use(context))),
        expected="nothing",
    )


# The context of handlers that are no coroutines.

SYNC_METHODS = """
abort add_callback auth_context disable_next_message_compression invocation_metadata peer peer_identities
peer_identity_key send_initial_metadata set_code set_compression set_details set_trailing_metadata time_remaining
"""


def _sync(look: Callable[[Any], None], kind: str) -> Handler:
    """A handler of a kind, no coroutine, that does something with its context and gives one response."""

    def one_response(request: Any, context: Any) -> bytes:
        look(context)
        return b"response"

    def responses(request: Any, context: Any) -> Iterator[bytes]:
        look(context)
        yield b"response"

    handlers = {
        "unary": unary(one_response),
        "server_streaming": server_streaming(responses),
        "client_streaming": client_streaming(one_response),
        "bidi": bidi(responses),
    }
    return handlers[kind]


@requirement("GRPC-CTX-31")
@pytest.mark.parametrize("kind", ["unary", "server_streaming", "client_streaming", "bidi"])
def test_sync_context_has_these_methods(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST give the sync context the methods that grpcio's has."""

    def exchange(target: LibraryTarget) -> Sequence[Any]:
        def look(context: Any) -> None:
            missing = [name for name in SYNC_METHODS.split() if not callable(getattr(context, name, None))]
            target.seen.note("missing", missing)

        target.serve({"Sync": _sync(look, kind)}).connect().unary(path("Sync"))
        return target.seen.values("missing")

    asserts.parity(grpc_library, exchange, expected=[[]])


@requirement("GRPC-CTX-32")
@pytest.mark.parametrize("kind", ["unary", "server_streaming"])
def test_sync_abort_raises(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST raise from `abort` on the sync context, so that nothing after it runs."""

    # Not compared with the grpcio of the run: 1.81.1 does not do what the row says, 1.85.3 does.
    def look(context: Any) -> None:
        try:
            context.abort(NOT_FOUND, "nothing here")
            grpc_library.seen.note("went on")
        finally:
            grpc_library.seen.note("left")

    connection = grpc_library.serve({"Sync": _sync(look, kind)}).connect()
    answer = asserts.answered(connection, connection.call(path("Sync")))
    asserts.seen(grpc_library, "left")
    asserts.equal("what the handler did after `abort`", [], grpc_library.seen.values("went on"))
    asserts.ended_with(answer, "NOT_FOUND")


@requirement("GRPC-CTX-33")
def test_sync_callbacks_run_before_the_response(grpc_library: LibraryTarget) -> None:
    """The server MUST run callbacks of the sync context of a unary handler before it sends the response."""

    def exchange(target: LibraryTarget) -> tuple[Any, ...]:
        def look(context: Any) -> None:
            context.add_callback(lambda: target.seen.note("called", 1))
            context.add_callback(lambda: target.seen.note("called", 2))

        answer = target.serve({"Sync": _sync(look, "unary")}).connect().unary(path("Sync"))
        return answer.status, answer.payloads, target.seen.values("called")

    asserts.parity(grpc_library, exchange, expected=(0, (b"response",), [1, 2]))


@requirement("GRPC-CTX-33")
def test_sync_callback_that_raises(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call with UNKNOWN where a callback of a unary handler's sync context raises."""

    def raises() -> None:
        raise ValueError("in a callback")

    def exchange(target: LibraryTarget) -> tuple[Any, ...]:
        handler = _sync(lambda context: context.add_callback(raises), "unary")
        answer = target.serve({"Sync": handler}).connect().unary(path("Sync"))
        return answer.status, answer.payloads

    asserts.parity(grpc_library, exchange, expected=(2, ()))
