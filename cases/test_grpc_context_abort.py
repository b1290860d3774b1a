"""How a handler ends its call by `abort`, and what can be done after it."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import grpc
import grpc.aio
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    ECHO,
    LibraryTarget,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire import stock

NOT_FOUND = grpc.StatusCode.NOT_FOUND


class Status(NamedTuple):
    """What ``abort_with_status`` takes (``grpc.Status``)."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, str], ...]


async def _raised(call: Awaitable[Any]) -> str:
    """What a call of the context raises: the class of grpc.aio that it belongs to, or else its own."""
    try:
        await call
    except Exception as error:
        known = [kind.__name__ for kind in (grpc.aio.AbortError, grpc.aio.UsageError) if isinstance(error, kind)]
        return [*known, type(error).__name__][0]
    return "nothing"


@requirement("GRPC-CTX-17")
@pytest.mark.parametrize("kind", ["unary", "server_streaming"])
def test_abort_raises_abort_error(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST raise `grpc.aio.AbortError('Locally aborted.')` from `abort`."""

    def exchange(target: LibraryTarget) -> list[Any]:
        async def aborts(request: bytes, context: Any) -> Any:
            try:
                await context.abort(NOT_FOUND, "nothing here")
            except Exception as error:
                target.seen.note("raised", (isinstance(error, grpc.aio.AbortError), str(error)))
                raise

        handler = unary(aborts) if kind == "unary" else server_streaming(aborts)
        outcome = target.serve({"Aborts": handler}).call("Aborts")
        return [*target.seen.wait("raised", target.timeout), outcome.code]

    asserts.parity(grpc_library, exchange, expected=[(True, "Locally aborted."), "NOT_FOUND"])


@requirement("GRPC-CTX-17")
def test_abort_is_sent_before_the_handler_ends(grpc_library: LibraryTarget) -> None:
    """The server MUST send the status of `abort` before the handler has finished cleaning up."""

    def exchange(target: LibraryTarget) -> tuple[bool, int | None]:
        async def cleans_up(request: bytes, context: Any) -> bytes:
            cleaned = asyncio.Event()
            try:
                await context.abort(NOT_FOUND, "nothing here")
            finally:
                target.seen.note("cleans up", cleaned)
                await cleaned.wait()
            return b""

        async def let_end(cleaned: asyncio.Event) -> None:
            cleaned.set()

        connection = target.serve({"Aborts": unary(cleans_up), "Echo": ECHO}).connect()
        stream = connection.call(path("Aborts"))
        [cleaned] = target.seen.wait("cleans up", target.timeout)
        before = asserts.settled(connection, [stream], path("Echo"))[0].ended
        target.run(let_end(cleaned))
        return before, connection.answer(stream).status

    asserts.parity(grpc_library, exchange, expected=(True, 5))


async def _nothing(context: Any) -> None:
    return None


async def _second_abort(context: Any) -> None:
    await context.abort(grpc.StatusCode.ABORTED, "second", (("key", "second"),))


async def _set_code(context: Any) -> None:
    context.set_code(grpc.StatusCode.OK)


async def _set_details(context: Any) -> None:
    context.set_details("second")


async def _set_trailing_metadata(context: Any) -> None:
    context.set_trailing_metadata((("key", "second"),))


async def _write(context: Any) -> None:
    await context.write(b"after")


LATER = {
    "return": _nothing,
    "abort": _second_abort,
    "set_code": _set_code,
    "set_details": _set_details,
    "set_trailing_metadata": _set_trailing_metadata,
}


@requirement("GRPC-CTX-18")
@pytest.mark.parametrize("later", LATER.values(), ids=LATER.keys())
def test_status_of_abort_is_final(grpc_library: LibraryTarget, later: Callable[[Any], Awaitable[None]]) -> None:
    """The server MUST keep the status of `abort`, whatever a handler does that swallows AbortError."""

    async def goes_on(request: bytes, context: Any) -> bytes:
        with contextlib.suppress(grpc.aio.AbortError):
            await context.abort(NOT_FOUND, "first")
        with contextlib.suppress(Exception):
            await later(context)
        return b"after"

    def exchange(target: LibraryTarget) -> stock.Outcome:
        return target.serve({"Aborts": unary(goes_on)}).call("Aborts")

    asserts.parity(grpc_library, exchange, expected=stock.Outcome("NOT_FOUND", "first"))


@requirement("GRPC-CTX-18")
@pytest.mark.parametrize("later", ["yield", "write", "set_code", "set_trailing_metadata"])
def test_no_message_after_abort(grpc_library: LibraryTarget, later: str) -> None:
    """The server MUST send no message after `abort`, also where the handler swallows AbortError."""
    acts = {"yield": _nothing, "write": _write, "set_code": _set_code, "set_trailing_metadata": _set_trailing_metadata}

    async def goes_on(request: bytes, context: Any) -> Any:
        yield b"before"
        with contextlib.suppress(grpc.aio.AbortError):
            await context.abort(NOT_FOUND, "first")
        with contextlib.suppress(Exception):
            await acts[later](context)
        if later == "yield":
            yield b"after"

    def exchange(target: LibraryTarget) -> stock.Outcome:
        return target.serve({"Aborts": server_streaming(goes_on)}).call("Aborts")

    asserts.parity(grpc_library, exchange, expected=stock.Outcome("NOT_FOUND", "first", (b"before",)))


@requirement("GRPC-CTX-19")
def test_second_abort_is_a_usage_error(grpc_library: LibraryTarget) -> None:
    """The server MUST raise `UsageError` from an `abort` that is called a second time."""

    def exchange(target: LibraryTarget) -> list[str]:
        async def aborts_twice(request: bytes, context: Any) -> bytes:
            target.seen.note("raised", await _raised(context.abort(NOT_FOUND, "first")))
            target.seen.note("raised", await _raised(_second_abort(context)))
            return b""

        target.serve({"Aborts": unary(aborts_twice)}).connect().unary(path("Aborts"))
        return target.seen.wait("raised", target.timeout, count=2)

    asserts.parity(grpc_library, exchange, expected=["AbortError", "UsageError"])


@requirement("GRPC-CTX-20")
@pytest.mark.parametrize(("given", "details"), [((), "set"), (("given",), "given")], ids=["without", "with"])
def test_details_of_abort_or_set_before(grpc_library: LibraryTarget, given: tuple[str, ...], details: str) -> None:
    """The server MUST keep details set before an `abort` without any, and replace them otherwise."""

    async def aborts(request: bytes, context: Any) -> bytes:
        context.set_details("set")
        await context.abort(NOT_FOUND, *given)
        return b""

    def exchange(target: LibraryTarget) -> stock.Outcome:
        return target.serve({"Aborts": unary(aborts)}).call("Aborts")

    asserts.parity(grpc_library, exchange, expected=stock.Outcome("NOT_FOUND", details))


async def _in_a_task(abort: Callable[[], Any]) -> None:
    await asyncio.create_task(abort())


async def _in_a_task_that_is_waited_for(abort: Callable[[], Any]) -> None:
    task = asyncio.create_task(abort())
    await asyncio.wait([task])
    task.exception()


async def _in_gather(abort: Callable[[], Any]) -> None:
    await asyncio.gather(abort(), asyncio.sleep(0))


async def _in_a_task_group(abort: Callable[[], Any]) -> None:
    async with asyncio.TaskGroup() as group:  # type: ignore[attr-defined,unused-ignore]  # Python 3.11
        group.create_task(abort())


TASKS = [
    pytest.param(_in_a_task, id="task"),
    pytest.param(_in_a_task_that_is_waited_for, id="task_result_unread"),
    pytest.param(_in_gather, id="gather"),
    pytest.param(
        _in_a_task_group,
        id="task_group",
        marks=pytest.mark.skipif(sys.version_info < (3, 11), reason="asyncio.TaskGroup needs Python 3.11"),
    ),
]


@requirement("GRPC-CTX-21")
@pytest.mark.parametrize("run", TASKS)
def test_abort_in_a_child_task(
    grpc_library: LibraryTarget, run: Callable[[Callable[[], Any]], Awaitable[None]]
) -> None:
    """The server MUST end a call with the status that a child task of its handler aborts with."""

    async def aborts(request: bytes, context: Any) -> bytes:
        await run(lambda: context.abort(NOT_FOUND, "from a child"))
        return b"response"

    def exchange(target: LibraryTarget) -> stock.Outcome:
        return target.serve({"Aborts": unary(aborts)}).call("Aborts")

    asserts.parity(grpc_library, exchange, expected=stock.Outcome("NOT_FOUND", "from a child"))


@requirement("GRPC-CTX-22")
def test_abort_with_ok_raises(grpc_library: LibraryTarget) -> None:
    """The server SHOULD raise from `abort(OK)`, as grpcio does."""

    def exchange(target: LibraryTarget) -> list[bool]:
        async def aborts(request: bytes, context: Any) -> bytes:
            target.seen.note("raised", await _raised(context.abort(grpc.StatusCode.OK, "fine")) != "nothing")
            return b"response"

        connection = target.serve({"Aborts": unary(aborts)}).connect()
        connection.call(path("Aborts"))
        return target.seen.wait("raised", target.timeout)

    asserts.parity(grpc_library, exchange, expected=[True])


@requirement("GRPC-CTX-22")
def test_abort_with_ok_ends_the_call(grpc_library: LibraryTarget) -> None:
    """The server SHOULD NOT leave a call open whose handler aborts with OK."""

    async def aborts(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.OK, "fine")
        return b"response"

    connection = grpc_library.serve({"Aborts": unary(aborts), "Echo": ECHO}).connect()
    [answer] = asserts.settled(connection, [connection.call(path("Aborts"))], path("Echo"))
    asserts.true("the call has ended", answer.ended, str(answer))


@requirement("GRPC-CTX-23")
def test_abort_with_status_uses_all_of_it(grpc_library: LibraryTarget) -> None:
    """The server MUST use the code, the details and the trailing metadata in `abort_with_status`."""

    async def aborts(request: bytes, context: Any) -> bytes:
        context.set_details("set before")
        context.set_trailing_metadata((("before", "value"),))
        await context.abort_with_status(Status(NOT_FOUND, "of the status", (("key", "value"),)))
        return b""

    def exchange(target: LibraryTarget) -> stock.Outcome:
        return target.serve({"Aborts": unary(aborts)}).call("Aborts")

    expected = stock.Outcome("NOT_FOUND", "of the status", trailing=(("key", "value"),))
    asserts.parity(grpc_library, exchange, expected=expected)


SEQUENCES = {"list": [("key", "value")], "metadata": grpc.aio.Metadata(("key", "value"))}


@requirement("GRPC-CTX-24")
@pytest.mark.parametrize("metadata", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_abort_with_other_sequences(grpc_library: LibraryTarget, metadata: Any) -> None:
    """The server SHOULD take a list or an `aio.Metadata` for the metadata of `abort`, or raise TypeError."""

    def exchange(target: LibraryTarget) -> str:
        async def aborts(request: bytes, context: Any) -> bytes:
            try:
                await context.abort(NOT_FOUND, "nothing here", metadata)
            except Exception as error:
                target.seen.note("raised", type(error).__name__)
                raise
            target.seen.note("raised", "nothing")
            return b""

        connection = target.serve({"Aborts": unary(aborts), "Echo": ECHO}).connect()
        [answer] = asserts.settled(connection, [connection.call(path("Aborts"))], path("Echo"))
        [raised] = target.seen.wait("raised", target.timeout)
        sent = answer.trailers.values("key") if answer.trailers else []
        refused = raised == "TypeError" and answer.status not in (None, 0)
        accepted = (raised, answer.status, sent) == ("AbortError", 5, [b"value"])
        return "as permitted" if refused or accepted else f"raised {raised}, {answer}"

    asserts.parity(grpc_library, exchange, expected="as permitted")
