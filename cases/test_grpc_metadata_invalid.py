"""Response metadata that a handler may not give: what is raised, how the call ends, and what stays off the wire."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, Handler, LibraryTarget, path, server_streaming, unary
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import WireSilence
from pytest_grpc_conformance.wire.frames import error_name

KINDS = ("unary", "stream")
POSITIONS = pytest.mark.parametrize("position", ["initial", "trailing", "abort"])
PROMPT = 1.0
"""Seconds for the end of a call, from when a later one has been answered: a library that never ends it should not
cost a run the whole timeout."""


async def give(context: Any, position: str, metadata: Any) -> None:
    """Give metadata as initial metadata, as trailing metadata, or with an abort."""
    if position == "initial":
        await context.send_initial_metadata(metadata)
    elif position == "trailing":
        context.set_trailing_metadata(metadata)
    else:
        await context.abort(grpc.StatusCode.ABORTED, "as asked", metadata)


def giving(kind: str, given: Mapping[str, tuple[str, Any]]) -> Handler:
    """A handler whose request names the position and metadata to give."""

    async def one(request: bytes, context: Any) -> bytes:
        await give(context, *given[request.decode()])
        return b"answer"

    async def many(request: bytes, context: Any) -> Any:
        await give(context, *given[request.decode()])
        yield b"answer"

    return unary(one) if kind == "unary" else server_streaming(many)


def given_answers(target: LibraryTarget, given: Mapping[str, tuple[str, Any]]) -> tuple[dict[str, Answer], Answer]:
    """What came of each call whose handler gave metadata, all on one connection, and of a plain call after them.

    Once the plain call is answered, the others are waited for as long as what is owed at once may take.
    """
    served = target.serve({**{kind: giving(kind, given) for kind in KINDS}, "Echo": ECHO})
    connection = served.connect()
    streams = {f"{kind} {name}": connection.call(path(kind), name.encode()) for kind in KINDS for name in given}
    echo = connection.unary(path("Echo"), b"still")
    with contextlib.suppress(WireSilence):
        connection.wait(
            lambda: all(connection.received.ended(stream) for stream in streams.values()),
            "the end of all calls",
            min(target.timeout, PROMPT),
        )
    return {name: connection.so_far(stream) for name, stream in streams.items()}, echo


def ends(answers: Mapping[str, Answer]) -> dict[str, str]:
    """What was given in the calls of each kind, by how they ended."""
    found: dict[str, list[str]] = {}
    for name, answer in answers.items():
        kind, _, given = name.partition(" ")
        found.setdefault(f"{kind}: {end_of(answer)}", []).append(given)
    return {end: ", ".join(names) for end, names in found.items()}


def all_end(end: str, given: Iterable[str]) -> dict[str, str]:
    """What ``ends`` gives when all calls end in one way."""
    return {f"{kind}: {end}": ", ".join(given) for kind in KINDS}


def end_of(answer: Answer) -> str:
    if not answer.ended:
        return "no end"
    names = {number: name for name, number in asserts.STATUS.items()}
    if answer.status is not None:
        return names.get(answer.status, f"status {answer.status}")
    return answer.closed or f"RST_STREAM {error_name(answer.reset or 0)} without a status"


MISSHAPEN: dict[str, Any] = {
    "dict": {"key": "value"},
    "none": None,
    "str": "key",
    "int": 3,
    "list-pairs": (["key", "value"],),
    "triple": (("key", "value", "more"),),
    "bytes-key": ((b"key", "value"),),
    "int-value": (("key", 1),),
    "none-value": (("key", None),),
}


@requirement("GRPC-MD-25")
@pytest.mark.parametrize("shape", MISSHAPEN)
def test_misshapen_trailing_metadata_is_a_type_error(grpc_library: LibraryTarget, shape: str) -> None:
    """The server MUST raise TypeError for trailing metadata of a wrong shape."""

    def exchange(target: LibraryTarget) -> Any:
        async def sets(request: bytes, context: Any) -> bytes:
            try:
                context.set_trailing_metadata(MISSHAPEN[shape])
                target.seen.note("raised", "nothing")
            except Exception as error:
                target.seen.note("raised", type(error).__name__)
            context.set_trailing_metadata((("after", "1"),))
            return b""

        outcome = target.serve({"Sets": unary(sets)}).call("Sets")
        return target.seen.values("raised"), outcome.code, outcome.trailing

    asserts.parity(grpc_library, exchange, expected=(["TypeError"], "OK", (("after", "1"),)))


INVALID: dict[str, tuple[str, str]] = {
    "upper case": ("Key", "v"),
    "blank": ("a key", "v"),
    "empty": ("", "v"),
    "colon": ("a:key", "v"),
    "key beyond ASCII": ("kéy", "v"),
    "CR": ("key", "a\rb"),
    "LF": ("key", "a\nb"),
    "NUL": ("key", "a\0b"),
    "value beyond ASCII": ("key", "é"),
}


@requirement("GRPC-MD-26")
@POSITIONS
def test_invalid_metadata_is_internal(grpc_library: LibraryTarget, position: str) -> None:
    """The server MUST end a call with INTERNAL whose handler gives an invalid key or value."""

    def exchange(target: LibraryTarget) -> Any:
        answers, echo = given_answers(target, {name: (position, (pair,)) for name, pair in INVALID.items()})
        return ends(answers), echo.payloads

    asserts.parity(grpc_library, exchange, expected=(all_end("INTERNAL", INVALID), (b"still",)))


@requirement("GRPC-MD-27")
def test_wrong_type_under_binary_key_ends_the_call(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call promptly whose handler gives anything but bytes under a `-bin` key."""
    values = {"bytearray": bytearray(b"x"), "memoryview": memoryview(b"x")}
    given: dict[str, tuple[str, Any]] = {"initial str": ("initial", (("key-bin", "text"),))}
    for position in ("initial", "trailing", "abort"):
        given |= {f"{position} {name}": (position, (("key-bin", value),)) for name, value in values.items()}

    def exchange(target: LibraryTarget) -> Any:
        answers, echo = given_answers(target, given)
        return ends(answers), echo.payloads

    asserts.parity(grpc_library, exchange, expected=(all_end("UNKNOWN", given), (b"still",)))


@requirement("GRPC-MD-27")
def test_text_under_binary_key_in_trailers_ends_the_call(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call promptly whose handler gives str under a `-bin` key for the trailers.

    Not compared with grpcio, which does not end it.
    """
    with asserts.owed("an answer to a later call"):
        answers, _ = given_answers(grpc_library, {p: (p, (("key-bin", "text"),)) for p in ("trailing", "abort")})
    endless = [name for name, answer in answers.items() if not answer.ended]
    asserts.equal("calls without an end", [], endless)


CONNECTION_FIELDS = ("connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade")


@requirement("GRPC-MD-30")
@POSITIONS
def test_connection_fields_are_not_sent(grpc_library: LibraryTarget, position: str) -> None:
    """The server SHOULD drop connection-specific fields of a handler, or end the call with INTERNAL."""
    given = {name: (position, ((name, "x"),)) for name in CONNECTION_FIELDS}
    with asserts.owed("an answer to a later call"):
        answers, _ = given_answers(grpc_library, given)
    sent = [name for name, answer in answers.items() if leaks(answer)]
    asserts.equal("calls that bring a connection-specific field", [], sent)
    proper = {"INTERNAL", "ABORTED" if position == "abort" else "OK"}
    wrong = {end: names for end, names in ends(answers).items() if end.partition(": ")[2] not in proper}
    asserts.equal(f"calls that end with neither of {sorted(proper)}", {}, wrong)


def leaks(answer: Answer) -> bool:
    return any(name.decode("latin-1") in CONNECTION_FIELDS for block in answer.blocks for name, _ in block.fields)
