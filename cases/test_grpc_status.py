"""Status codes, their messages, and the trailers that carry them."""

from __future__ import annotations

import base64
import re
from typing import Any, NamedTuple

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
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
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import RawConnection
from pytest_grpc_conformance.wire.frames import ErrorCode, Kind

CODES = [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
DETAILS = "grpc-status-details-bin"


async def _ok(request: bytes, context: Any) -> bytes:
    return request


async def _ok_stream(request: bytes, context: Any) -> Any:
    yield b"first"
    yield b"second"


async def _ok_empty(request: bytes, context: Any) -> Any:
    if request == b"never":
        yield request


async def _joined(requests: Any, context: Any) -> bytes:
    return b"".join([request async for request in requests])


async def _echoes(requests: Any, context: Any) -> Any:
    async for request in requests:
        yield request


async def _aborts(request: bytes, context: Any) -> bytes:
    await context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")
    return b""


async def _aborts_first(request: bytes, context: Any) -> Any:
    await context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")
    yield b""


async def _aborts_late(request: bytes, context: Any) -> Any:
    yield b"first"
    await context.abort(grpc.StatusCode.NOT_FOUND, "nothing more")


async def _raises(request: bytes, context: Any) -> bytes:
    raise ValueError("boom")


async def _raises_late(request: bytes, context: Any) -> Any:
    yield b"first"
    raise ValueError("boom")


METHODS = {
    "Ok": unary(_ok),
    "OkStream": server_streaming(_ok_stream),
    "OkEmpty": server_streaming(_ok_empty),
    "OkJoined": client_streaming(_joined),
    "OkEchoes": bidi(_echoes),
    "Aborts": unary(_aborts),
    "AbortsFirst": server_streaming(_aborts_first),
    "AbortsLate": server_streaming(_aborts_late),
    "Raises": unary(_raises),
    "RaisesLate": server_streaming(_raises_late),
}
OK = ["Ok", "OkStream", "OkEmpty", "OkJoined", "OkEchoes"]
EARLY = ["Aborts", "AbortsFirst", "Raises", "Missing"]
LATE = ["AbortsLate", "RaisesLate"]
ends_by = pytest.mark.parametrize("method", [*OK, *EARLY, *LATE])


def _call(served: Served, method: str) -> tuple[RawConnection, Answer]:
    connection = served.connect()
    answer = asserts.answered(connection, connection.call(path(method), b"request"))
    return connection, answer


@requirement("GRPC-STATUS-01", "GRPC-STATUS-07")
@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name.lower())
def test_abort_sends_its_code(grpc_library: LibraryTarget, code: grpc.StatusCode) -> None:
    """The server MUST send the code that a handler aborts with as `grpc-status`, with `:status` 200."""

    async def aborts(request: bytes, context: Any) -> bytes:
        await context.abort(code, "as asked")
        return b""

    async def aborts_in_stream(request: bytes, context: Any) -> Any:
        if request:
            yield request
        await context.abort(code, "as asked")

    served = grpc_library.serve({"Unary": unary(aborts), "Stream": server_streaming(aborts_in_stream)})
    connection = served.connect()
    for method, request, messages in [("Unary", b"", ()), ("Stream", b"", ()), ("Stream", b"one", (b"one",))]:
        answer = asserts.answered(connection, connection.call(path(method), request))
        asserts.ended_with(answer, code.name)
        assert answer.trailers is not None
        asserts.equal("grpc-status as sent", [b"%d" % code.value[0]], answer.trailers.values("grpc-status"))
        asserts.equal("the messages before it", messages, answer.payloads)


@requirement("GRPC-STATUS-02")
@pytest.mark.parametrize("method", OK)
def test_success_has_a_status(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST send `grpc-status: 0` in the trailers of a call that succeeds, in every kind of method."""
    _, answer = _call(grpc_library.serve(METHODS), method)
    asserts.ended_with(answer, "OK")
    assert answer.trailers is not None
    asserts.equal("grpc-status as sent", [b"0"], answer.trailers.values("grpc-status"))


@requirement("GRPC-STATUS-03")
@ends_by
def test_one_status_in_the_last_block(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST send exactly one `grpc-status`, in the last header block of the response."""
    _, answer = _call(grpc_library.serve(METHODS), method)
    counts = [len(block.values("grpc-status")) for block in answer.blocks]
    asserts.equal("grpc-status fields in each header block", [0] * (len(counts) - 1) + [1], counts)


@requirement("GRPC-STATUS-04")
@ends_by
def test_trailers_end_the_stream(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST end the stream with the trailers' HEADERS, and send nothing on it after them."""
    connection, answer = _call(grpc_library.serve(METHODS), method)
    with asserts.owed("the acknowledgement of a PING"):
        connection.fence()
    answer = connection.so_far(answer.stream)
    asserts.true("the stream ends with a header block", answer.trailers is not None, str(answer))
    asserts.true("no DATA frame ends the stream", not answer.data_ended, str(answer))
    frames = connection.received.on_stream(answer.stream)
    ends = next(at for at, frame in enumerate(frames) if frame.type == Kind.HEADERS and "END_STREAM" in frame.flags)
    for frame in frames[ends + 1 :]:
        harmless = (Kind.CONTINUATION, Kind.WINDOW_UPDATE, Kind.PRIORITY)
        reset = frame.type == Kind.RST_STREAM and getattr(frame, "error_code", None) == ErrorCode.NO_ERROR
        asserts.true("nothing follows the trailers", frame.type in harmless or reset, repr(frame))


@requirement("GRPC-STATUS-05")
@pytest.mark.parametrize("method", EARLY)
def test_error_before_any_message(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST give a trailers-only answer its `:status`, `content-type` and `grpc-status`."""
    _, answer = _call(grpc_library.serve(METHODS), method)
    asserts.true("the answer has a header block that ends it", answer.trailers is not None, str(answer))
    first = answer.blocks[0]
    asserts.equal(":status of the first block", [b"200"], first.values(":status"))
    types = first.values("content-type")
    asserts.true("one content-type, of gRPC", len(types) == 1 and types[0].startswith(b"application/grpc"), str(types))
    asserts.true("grpc-status in the last block", answer.status is not None, str(answer))
    asserts.equal("the octets of DATA", b"", answer.data)


@requirement("GRPC-STATUS-06")
@pytest.mark.parametrize("method", ["OkStream", *LATE])
def test_no_pseudo_header_in_trailers(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST NOT put a pseudo-header into trailers that follow response headers."""
    _, answer = _call(grpc_library.serve(METHODS), method)
    asserts.true("headers and trailers", answer.headers is not None and answer.trailers is not None, str(answer))
    assert answer.trailers is not None
    names = [name for name, _ in answer.trailers.fields]
    asserts.equal("pseudo-headers in trailers", [], [name for name in names if name.startswith(b":")])


@requirement("GRPC-STATUS-07")
@ends_by
def test_http_status_stays_200(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST answer every outcome at gRPC level with one `:status`, which is 200."""
    _, answer = _call(grpc_library.serve(METHODS), method)
    statuses = [value for block in answer.blocks for value in block.values(":status")]
    asserts.equal(":status of the response", [b"200"], statuses)


TEXTS = {
    "ascii": "nothing here",
    "percent": "100% %41 %zz %",
    "bmp": "größer als 5 €, 日本語",
    "beyond_bmp": "\U0001f600 and \U00010348",
    "line_ends": "one\r\ntwo\nthree\r",
    "tab": "a\tb",
    "nul": "a\0b",
    "del": "a\x7fb",
}
PERCENT_ENCODED = re.compile(rb"(?:[\x20-\x24\x26-\x7e]|%[0-9A-Fa-f]{2})*")


def _abort_with(text: str) -> grpc.RpcMethodHandler[Any, Any]:
    async def aborts(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, text)
        return b""

    return unary(aborts)


def _message_field(answer: Answer) -> bytes:
    asserts.ended_with(answer, "NOT_FOUND")
    assert answer.trailers is not None
    values = answer.trailers.values("grpc-message")
    asserts.equal("the number of grpc-message fields", 1, len(values))
    return values[0]


@requirement("GRPC-STATUS-08")
@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS.keys())
def test_message_is_percent_encoded(grpc_library: LibraryTarget, text: str) -> None:
    """The server MUST percent-encode `grpc-message`, so that decoding gives the handler's text back."""
    served = grpc_library.serve({"Aborts": _abort_with(text)})
    _, answer = _call(served, "Aborts")
    sent = _message_field(answer)
    asserts.true("grpc-message is percent-encoded", bool(PERCENT_ENCODED.fullmatch(sent)), repr(sent))
    asserts.equal("the decoded grpc-message", text, answer.details)
    asserts.equal("details() of a stock client", text, served.call("Aborts").details)


@requirement("GRPC-STATUS-09")
def test_printable_text_bare_or_encoded(grpc_library: LibraryTarget) -> None:
    """The server SHOULD send printable ASCII bare or percent-encoded; either way it decodes to the text."""
    text = "".join(chr(octet) for octet in range(0x20, 0x7F) if chr(octet) != "%") + "."
    _, answer = _call(grpc_library.serve({"Aborts": _abort_with(text)}), "Aborts")
    _message_field(answer)
    asserts.equal("the decoded grpc-message", text, answer.details)


@requirement("GRPC-STATUS-10")
@pytest.mark.parametrize("succeeds", [True, False], ids=["ok", "error"])
def test_no_message_without_text(grpc_library: LibraryTarget, succeeds: bool) -> None:
    """The server SHOULD leave `grpc-message` out, or empty, where there is no text."""
    served = grpc_library.serve({"Ok": unary(_ok), "Error": _abort_with("")})
    _, answer = _call(served, "Ok" if succeeds else "Error")
    asserts.ended_with(answer, "OK" if succeeds else "NOT_FOUND")
    assert answer.trailers is not None
    asserts.equal("texts in grpc-message", [], [text for text in answer.trailers.values("grpc-message") if text])


@requirement("GRPC-STATUS-11")
@pytest.mark.parametrize("length", [5_000, 20_000], ids=["5k", "20k"])
def test_long_message_arrives(grpc_library: LibraryTarget, length: int) -> None:
    """The server MUST send a long status message whole, in frames of at most the peer's size."""
    text = ("{0123456789}<" * length)[:length]
    served = grpc_library.serve({"Aborts": _abort_with(text)})
    _, answer = _call(served, "Aborts")
    asserts.ended_with(answer, "NOT_FOUND")
    asserts.equal("the length of grpc-message", length, len(answer.details))
    asserts.equal("grpc-message", text, answer.details)
    outcome = served.call("Aborts")
    asserts.equal("what a stock client gets", ("NOT_FOUND", text), (outcome.code, outcome.details))


@requirement("GRPC-STATUS-12")
def test_spaces_around_details(grpc_library: LibraryTarget) -> None:
    """The server MUST keep the spaces before and after the details, as grpcio does."""

    def exchange(target: LibraryTarget) -> str:
        return target.serve({"Aborts": _abort_with("  two before, one after ")}).call("Aborts").details

    asserts.parity(grpc_library, exchange, expected="  two before, one after ")


RESERVED = [("grpc-status", "0"), ("grpc-status", "7"), ("grpc-message", "forged")]


@requirement("GRPC-STATUS-13")
@pytest.mark.parametrize("where", ["initial", "trailing"])
def test_reserved_keys_do_not_override(grpc_library: LibraryTarget, where: str) -> None:
    """The server MUST let the handler's status win over `grpc-` keys in the handler's metadata."""

    async def forges(request: bytes, context: Any) -> bytes:
        number, _, ending = request.decode().partition(" ")
        field = RESERVED[int(number)]
        try:
            if where == "initial":
                await context.send_initial_metadata((field,))
            else:
                context.set_trailing_metadata((field,))
        except Exception as refused:  # A library may refuse such keys; the handler carries on.
            grpc_library.seen.note("refused", refused)
        if ending == "error":
            await context.abort(grpc.StatusCode.NOT_FOUND, "the true text")
        return b"response"

    connection = grpc_library.serve({"Forges": unary(forges), "Echo": ECHO}).connect()
    endings = [(number, ending) for number in range(len(RESERVED)) for ending in ("ok", "error")]
    streams = [connection.call(path("Forges"), b"%d %s" % (number, ending.encode())) for number, ending in endings]
    for (number, ending), answer in zip(endings, asserts.settled(connection, streams, path("Echo")), strict=True):
        what = f"{RESERVED[number]} in {where} metadata of a call that ends with {ending}"
        asserts.true(f"the end came with {what}", answer.ended, str(answer))
        asserts.ended_with(answer, "OK" if ending == "ok" else "NOT_FOUND")
        assert answer.trailers is not None
        asserts.equal(f"the statuses with {what}", 1, len(answer.trailers.values("grpc-status")))
        asserts.equal(f"the text with {what}", "" if ending == "ok" else "the true text", answer.details)
        asserts.equal(f"the messages with {what}", (b"response",) if ending == "ok" else (), answer.payloads)


class RichStatus(NamedTuple):
    """What ``abort_with_status`` takes (``grpc.Status``)."""

    code: grpc.StatusCode
    details: str
    trailing_metadata: tuple[tuple[str, bytes], ...]


async def _abort_with_status(context: Any, octets: bytes) -> None:
    await context.abort_with_status(RichStatus(grpc.StatusCode.NOT_FOUND, "rich", ((DETAILS, octets),)))


async def _abort_with_metadata(context: Any, octets: bytes) -> None:
    await context.abort(grpc.StatusCode.NOT_FOUND, "rich", ((DETAILS, octets),))


async def _set_trailing_metadata(context: Any, octets: bytes) -> None:
    context.set_trailing_metadata(((DETAILS, octets),))
    context.set_code(grpc.StatusCode.NOT_FOUND)
    context.set_details("rich")


def _octets(value: bytes) -> bytes:
    """The octets of a binary field, whose base64 may be padded or not; the value itself if it is no base64."""
    try:
        return base64.b64decode(value + b"=" * (-len(value) % 4), validate=True)
    except ValueError:
        return value


WAYS = {"status": _abort_with_status, "abort": _abort_with_metadata, "set": _set_trailing_metadata}


@requirement("GRPC-STATUS-28")
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS.keys())
def test_status_details_arrive(grpc_library: LibraryTarget, way: Any) -> None:
    """The server MUST send `grpc-status-details-bin` with an error, octet for octet."""

    async def fails(request: bytes, context: Any) -> bytes:
        await way(context, request)
        return b""

    served = grpc_library.serve({"Fails": unary(fails)})
    connection = served.connect()
    octets = bytes(range(256))
    for given in (octets, octets[1:], octets[:-2]):  # Every length modulo three, as base64 tells them apart.
        answer = asserts.answered(connection, connection.call(path("Fails"), given))
        asserts.ended_with(answer, "NOT_FOUND")
        assert answer.trailers is not None
        values = answer.trailers.values(DETAILS)
        asserts.equal(f"the number of {DETAILS} fields", 1, len(values))
        asserts.equal(DETAILS, given, _octets(values[0]))
    outcome = served.call("Fails", octets)
    asserts.equal("what a stock client gets", ("NOT_FOUND", ((DETAILS, octets),)), (outcome.code, outcome.trailing))


@requirement("GRPC-STATUS-29")
def test_status_details_with_success(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call with OK that sets `grpc-status-details-bin`, as grpcio does."""

    async def succeeds(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata(((DETAILS, b"\x00details\xff"),))
        return request

    def exchange(target: LibraryTarget) -> tuple[int | None, tuple[bytes, ...]]:
        connection = target.serve({"Succeeds": unary(succeeds), "Echo": ECHO}).connect()
        (answer,) = asserts.settled(connection, [connection.call(path("Succeeds"), b"request")], path("Echo"))
        return answer.status, answer.payloads

    asserts.parity(grpc_library, exchange, expected=(0, (b"request",)))
