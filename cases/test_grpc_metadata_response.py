"""Response metadata: what a handler may give as initial and trailing metadata, and what of it goes on the wire."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
import grpc.aio
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    Handler,
    LibraryTarget,
    bidi,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire import stock
from pytest_grpc_conformance.wire.connection import WireSilence

Act = Callable[[Any], Awaitable[None]]
Pair = tuple[str, str]
PROMPT = 1.0
"""Seconds for headers that are owed at once, from when the handler has given them: a library that holds them back
should not cost a run the whole timeout."""


def handler_of(kind: str, act: Act) -> Handler:
    """A handler that acts on its context and then answers with one message."""

    async def one(request: Any, context: Any) -> bytes:
        await act(context)
        return b"answer"

    async def many(request: Any, context: Any) -> Any:
        await act(context)
        yield b"answer"

    return {"unary": unary(one), "stream": server_streaming(many), "bidi": bidi(many)}[kind]


def stock_call(target: LibraryTarget, kind: str, act: Act) -> stock.Outcome:
    """A stock call of a handler that acts on its context."""
    return target.serve({"Acts": handler_of(kind, act)}).call("Acts", [b""] if kind == "bidi" else b"")


@requirement("GRPC-MD-07")
@pytest.mark.parametrize("position", ["initial", "trailing"])
def test_binary_metadata_is_sent_without_padding(grpc_library: LibraryTarget, position: str) -> None:
    """The server SHOULD send `-bin` values as base64 without padding."""
    values = [b"", b"\xff", b"\xff\xfe", b"\xff\xfe\xfd", bytes(range(256))]

    async def act(context: Any) -> None:
        given = tuple(("data-bin", value) for value in values)
        if position == "initial":
            await context.send_initial_metadata(given)
        else:
            context.set_trailing_metadata(given)

    connection = grpc_library.serve({"Acts": handler_of("unary", act)}).connect()
    answer = asserts.answered(connection, connection.call(path("Acts")))
    asserts.ended_with(answer, "OK")
    block = answer.headers if position == "initial" else answer.trailers
    sent = b",".join(block.values("data-bin") if block else [])  # They may be sent joined.
    wanted = b",".join(base64.b64encode(value).rstrip(b"=") for value in values)
    asserts.equal(f"the -bin values in the {position} block", wanted, sent)


@requirement("GRPC-MD-21")
@pytest.mark.parametrize("kind", ["unary", "stream", "bidi"])
def test_metadata_arrives_in_its_block(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST send initial metadata in the headers and trailing metadata in the trailers."""
    initial = (("first", "1"), ("many", "b"), ("many", "a"), ("some-bin", b"\0\xff"), ("some-bin", b"\x01"))
    trailing = (("last", "2"), ("many", "d"), ("many", "c"), ("other-bin", bytes(range(256))), ("other-bin", b""))

    async def act(context: Any) -> None:
        await context.send_initial_metadata(initial)
        context.set_trailing_metadata(trailing)

    wanted = stock.Outcome("OK", "", (b"answer",), initial, trailing)
    asserts.parity(grpc_library, lambda target: stock_call(target, kind, act), expected=wanted)


@requirement("GRPC-MD-22")
@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_initial_metadata_goes_out_at_once(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST put initial metadata on the wire at once, while the handler is still working."""

    def exchange(target: LibraryTarget) -> Any:
        gate = asyncio.Event()

        async def act(context: Any) -> None:
            await context.send_initial_metadata((("early", "1"),))
            target.seen.note("sent")
            await gate.wait()

        async def open_gate() -> None:
            gate.set()

        connection = target.serve({"Acts": handler_of(kind, act)}).connect()
        stream = connection.call(path("Acts"))
        target.seen.wait("sent", target.timeout)
        with contextlib.suppress(WireSilence):
            connection.wait(lambda: connection.so_far(stream).blocks, "headers", min(target.timeout, PROMPT))
        early = [value for block in connection.so_far(stream).blocks for value in block.values("early")]
        target.run(open_gate())
        return early, connection.answer(stream).status

    asserts.parity(grpc_library, exchange, expected=([b"1"], 0))


@requirement("GRPC-MD-23")
@pytest.mark.parametrize("kind", ["unary", "stream"])
@pytest.mark.parametrize("failure", ["abort", "raise", "set-code"])
def test_initial_metadata_stays_initial_before_a_failure(grpc_library: LibraryTarget, kind: str, failure: str) -> None:
    """The server MUST send initial metadata as such, also when the handler fails afterwards."""

    async def act(context: Any) -> None:
        await context.send_initial_metadata((("early", "1"),))
        context.set_trailing_metadata((("late", "2"),))
        if failure == "abort":
            await context.abort(grpc.StatusCode.ABORTED, "as asked")
        if failure == "raise":
            raise ValueError("boom")
        context.set_code(grpc.StatusCode.ABORTED)

    def exchange(target: LibraryTarget) -> Any:
        outcome = stock_call(target, kind, act)
        return outcome.code, outcome.initial, outcome.trailing

    code = "UNKNOWN" if failure == "raise" else "ABORTED"
    asserts.parity(grpc_library, exchange, expected=(code, (("early", "1"),), (("late", "2"),)))


PAIRS = (("many", "b"), ("many", "a"))
SHAPES: dict[str, Callable[[], Any]] = {
    "tuple": lambda: PAIRS,
    "list": lambda: list(PAIRS),
    "aio-metadata": lambda: grpc.aio.Metadata(*PAIRS),
    "generator": lambda: (pair for pair in PAIRS),
    "list-pairs": lambda: tuple(list(pair) for pair in PAIRS),
}


@requirement("GRPC-MD-24")
@pytest.mark.parametrize("shape", SHAPES)
def test_initial_metadata_in_any_shape(grpc_library: LibraryTarget, shape: str) -> None:
    """The server MUST take initial metadata from any iterable of pairs, which may be lists."""

    async def act(context: Any) -> None:
        await context.send_initial_metadata(SHAPES[shape]())

    wanted = stock.Outcome("OK", "", (b"answer",), PAIRS)
    asserts.parity(grpc_library, lambda target: stock_call(target, "stream", act), expected=wanted)


@requirement("GRPC-MD-24")
@pytest.mark.parametrize("shape", ["tuple", "list", "aio-metadata"])
def test_trailing_metadata_in_each_shape(grpc_library: LibraryTarget, shape: str) -> None:
    """The server MUST take trailing metadata as a tuple, a list or an `aio.Metadata`."""

    async def act(context: Any) -> None:
        context.set_trailing_metadata(SHAPES[shape]())

    wanted = stock.Outcome("OK", "", (b"answer",), (), PAIRS)
    asserts.parity(grpc_library, lambda target: stock_call(target, "unary", act), expected=wanted)


@requirement("GRPC-MD-28")
def test_bytes_under_text_key_are_sent_as_text(grpc_library: LibraryTarget) -> None:
    """The server SHOULD send bytes under an ASCII key as that text."""

    async def act(context: Any) -> None:
        await context.send_initial_metadata((("early", b"a value"),))
        context.set_trailing_metadata((("late", b"another"),))

    wanted = stock.Outcome("OK", "", (b"answer",), (("early", "a value"),), (("late", "another"),))
    asserts.parity(grpc_library, lambda target: stock_call(target, "stream", act), expected=wanted)


@requirement("GRPC-MD-29")
def test_application_keys_may_begin_with_grpc(grpc_library: LibraryTarget) -> None:
    """The server SHOULD send application keys that begin with `grpc-` and are not reserved."""

    async def act(context: Any) -> None:
        await context.send_initial_metadata((("grpc-early", "1"),))
        context.set_trailing_metadata((("grpc-late", "2"),))

    wanted = stock.Outcome("OK", "", (b"answer",), (("grpc-early", "1"),), (("grpc-late", "2"),))
    asserts.parity(grpc_library, lambda target: stock_call(target, "stream", act), expected=wanted)


@requirement("GRPC-MD-31")
@pytest.mark.parametrize("when", ["unary-twice", "stream-twice", "after-yield", "after-write"])
def test_late_initial_metadata_is_a_usage_error(grpc_library: LibraryTarget, when: str) -> None:
    """The server MUST raise UsageError for initial metadata that comes too late, and go on with the call."""

    def exchange(target: LibraryTarget) -> Any:
        async def late(context: Any) -> None:
            try:
                await context.send_initial_metadata((("late", "1"),))
                target.seen.note("raised", "nothing")
            except Exception as error:
                usage = isinstance(error, grpc.aio.UsageError)
                target.seen.note("raised", "UsageError" if usage else type(error).__name__)

        async def twice(context: Any) -> None:
            await context.send_initial_metadata((("early", "1"),))
            await late(context)

        async def after_yield(request: bytes, context: Any) -> Any:
            yield b"first"
            await late(context)
            yield b"answer"

        async def after_write(request: bytes, context: Any) -> None:
            await context.write(b"first")
            await late(context)
            await context.write(b"answer")

        served = target.serve(
            {
                "unary-twice": handler_of("unary", twice),
                "stream-twice": handler_of("stream", twice),
                "after-yield": server_streaming(after_yield),
                "after-write": server_streaming(after_write),
            }
        )
        outcome = served.call(when)
        return target.seen.values("raised"), outcome

    twice = when.endswith("twice")
    messages = (b"answer",) if twice else (b"first", b"answer")
    wanted = stock.Outcome("OK", "", messages, (("early", "1"),) if twice else ())
    asserts.parity(grpc_library, exchange, expected=(["UsageError"], wanted))


@requirement("GRPC-MD-32")
@pytest.mark.parametrize("kind", ["unary", "stream"])
def test_trailing_metadata_is_replaced(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST let trailing metadata replace what was set before."""

    async def act(context: Any) -> None:
        context.set_trailing_metadata((("old", "1"), ("both", "1")))
        context.set_trailing_metadata((("both", "2"), ("new", "2")))

    wanted = stock.Outcome("OK", "", (b"answer",), (), (("both", "2"), ("new", "2")))
    asserts.parity(grpc_library, lambda target: stock_call(target, kind, act), expected=wanted)


@requirement("GRPC-MD-33")
@pytest.mark.parametrize("kind", ["unary", "stream"])
@pytest.mark.parametrize("given", [(("new", "2"),), (), None], ids=["with", "with-empty", "without"])
def test_abort_and_earlier_trailing_metadata(
    grpc_library: LibraryTarget, given: tuple[Pair, ...] | None, kind: str
) -> None:
    """The server MUST let the metadata of an abort replace what was set, and keep that without any."""

    async def act(context: Any) -> None:
        context.set_trailing_metadata((("old", "1"),))
        await context.abort(grpc.StatusCode.ABORTED, "as asked", *(() if given is None else (given,)))

    wanted = stock.Outcome("ABORTED", "as asked", (), (), given or (("old", "1"),))
    asserts.parity(grpc_library, lambda target: stock_call(target, kind, act), expected=wanted)
