"""Compressed messages: what is decompressed, what is refused, what is announced, and what a response is sent in."""

from __future__ import annotations

import functools
import gzip
import zlib
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    ECHO,
    LibraryTarget,
    Served,
    bidi,
    echoing,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import RawConnection
from pytest_grpc_conformance.wire.frames import message
from pytest_grpc_conformance.wire.memory import PeakMemory, PeakUnknown

TEXT = b"what is said again and again is said again and again. " * 20
PACKED = gzip.compress(TEXT)
TAKES_ALL = [("grpc-accept-encoding", "identity, deflate, gzip")]
TAKES_IDENTITY = [("grpc-accept-encoding", "identity")]
LIMIT = "grpc.max_receive_message_length"
BOMB = 128 << 20
"""Octets of zero behind a few of gzip: longer than any allocation that comes from memory which a process has kept."""

kinds = pytest.mark.parametrize("method", ["Unary", "Bidi"], ids=["unary", "bidi"])
response_streams = pytest.mark.parametrize("method", ["Stream", "Bidi"], ids=["server-stream", "bidi"])


def serve(target: LibraryTarget, **options: Any) -> Served:
    """Handlers of all kinds that note what they get, and ``Later``, which notes nothing."""
    return target.serve({**echoing(target.seen), "Later": ECHO}, **options)


def send(connection: RawConnection, method: str, octets: bytes, encoding: str | None = "gzip") -> int:
    """Send a request with these octets as its data, under ``grpc-encoding``; the stream's id."""
    stream = connection.start(path(method), metadata=[("grpc-encoding", encoding)] if encoding else [])
    connection.data(stream, octets, end_stream=True)
    return stream


def asked(connection: RawConnection, method: str, octets: bytes, encoding: str | None = "gzip") -> Answer:
    """The whole answer to such a request; the server owes its end."""
    return asserts.answered(connection, send(connection, method, octets, encoding))


def got(target: LibraryTarget) -> list[bytes]:
    """The requests that handlers have noted so far."""
    return target.seen.values("message")


def announced(answer: Answer) -> set[str] | None:
    """The names in ``grpc-accept-encoding``, wherever it stands; ``None`` without that field."""
    values = [value for block in answer.blocks for value in block.values("grpc-accept-encoding")]
    return {name.strip() for name in b",".join(values).decode("latin-1").split(",")} if values else None


# Requests.


@requirement("GRPC-MSG-14")
@kinds
@pytest.mark.parametrize("encoding", [None, "identity"], ids=["no-encoding", "identity"])
def test_flag_without_encoding_is_internal(grpc_library: LibraryTarget, method: str, encoding: str | None) -> None:
    """The server MUST end a call with INTERNAL whose message is flagged, but has no encoding."""
    answer = asked(serve(grpc_library).connect(), method, message(PACKED, flag=1), encoding)
    asserts.ended_with(answer, "INTERNAL")


@requirement("GRPC-MSG-15")
@pytest.mark.parametrize(
    "method", ["Unary", "ServerStream", "ClientStream", "Bidi"], ids=["unary", "server-stream", "client-stream", "bidi"]
)
@pytest.mark.parametrize("flag", [0, 1], ids=lambda flag: f"flag={flag}")
def test_gzip_is_decompressed_by_flag(grpc_library: LibraryTarget, method: str, flag: int) -> None:
    """The server MUST decompress a gzip message with flag 1, and take one with flag 0 as it is."""
    answer = asked(serve(grpc_library).connect(), method, message(PACKED, flag=flag))
    asserts.ended_with(answer, "OK")
    asserts.equal("the messages in the handler", [TEXT if flag else PACKED], got(grpc_library))


@requirement("GRPC-MSG-15")
@kinds
def test_gzip_of_a_stock_client(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST take what a stock client sends with compression=Gzip."""
    asserts.equal("the call", ("OK", (TEXT,)), stock_call(grpc_library, method, grpc.Compression.Gzip))
    asserts.equal("the messages in the handler", [TEXT], got(grpc_library))


@requirement("GRPC-MSG-16")
@kinds
def test_deflate_of_a_stock_client(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST take what a stock client sends with compression=Deflate."""
    asserts.parity(
        grpc_library,
        lambda target: stock_call(target, method, grpc.Compression.Deflate),
        expected=("OK", (TEXT,)),
    )


def stock_call(target: LibraryTarget, method: str, compression: grpc.Compression) -> tuple[str, tuple[bytes, ...]]:
    request = [TEXT] if method == "Bidi" else TEXT
    outcome = serve(target).call(method, request, compression=compression)
    return outcome.code, outcome.messages


UNKNOWN = [
    pytest.param("Unary", "snappy", id="snappy-unary"),
    pytest.param("Unary", "br", id="br-unary"),
    pytest.param("Unary", "zstd", id="zstd-unary"),
    pytest.param("Bidi", "br", id="br-bidi"),
]


@requirement("GRPC-MSG-17")
@pytest.mark.parametrize(("method", "encoding"), UNKNOWN)
def test_unknown_encoding_is_unimplemented(grpc_library: LibraryTarget, method: str, encoding: str) -> None:
    """The server MUST end a call with UNIMPLEMENTED whose encoding it does not know."""
    answer = asked(serve(grpc_library).connect(), method, message(b"\0\1\2\3", flag=1), encoding)
    if encoding in (announced(answer) or set()):
        pytest.skip(f"the server knows {encoding}")
    asserts.ended_with(answer, "UNIMPLEMENTED")


@requirement("GRPC-MSG-17")
@kinds
def test_refusal_announces_known_encodings(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST announce `grpc-accept-encoding`, without that name, to whom it refuses an encoding."""
    answer = asked(serve(grpc_library).connect(), method, message(b"\0\1\2\3", flag=1), "unheard-of")
    asserts.fails(answer)
    names = announced(answer)
    asserts.true("the response announces grpc-accept-encoding", names is not None, str(answer))
    asserts.true("what is announced lacks the refused name", "unheard-of" not in (names or set()), names)


def with_wrong_checksum(packed: bytes) -> bytes:
    at = len(packed) - 8  # CRC-32, then the length: four octets each (RFC 1952, section 2.3).
    return packed[:at] + bytes([packed[at] ^ 0xFF]) + packed[at + 1 :]


@requirement("GRPC-MSG-18")
@kinds
@pytest.mark.parametrize(
    "packed",
    [b"no gzip at all", PACKED[:-20], PACKED[:-8], with_wrong_checksum(PACKED)],
    ids=["garbage", "truncated", "no-trailer", "wrong-checksum"],
)
def test_broken_gzip_is_internal(grpc_library: LibraryTarget, method: str, packed: bytes) -> None:
    """The server MUST end a call with INTERNAL whose message does not decompress."""
    answer = asked(serve(grpc_library).connect(), method, message(packed, flag=1))
    asserts.ended_with(answer, "INTERNAL")
    asserts.equal("the messages in the handler", [], got(grpc_library))


@requirement("GRPC-MSG-19")
@kinds
def test_octets_after_the_gzip_stream_fail(grpc_library: LibraryTarget, method: str) -> None:
    """The server SHOULD take octets after the end of the compressed stream for an error."""
    asserts.fails(asked(serve(grpc_library).connect(), method, message(PACKED + b"junk", flag=1)))


@requirement("GRPC-MSG-19")
@kinds
def test_second_gzip_member_is_not_dropped(grpc_library: LibraryTarget, method: str) -> None:
    """The server SHOULD fail on a second gzip member, or decompress both; it SHOULD not drop one."""
    answer = asked(serve(grpc_library).connect(), method, message(PACKED + gzip.compress(b"second"), flag=1))
    if answer.status == 0:  # A gzip file may have several members (RFC 1952, section 2.2).
        asserts.equal("the messages in the handler", [TEXT + b"second"], got(grpc_library))
    else:
        asserts.fails(answer)


@requirement("GRPC-MSG-20")
@kinds
def test_accepted_encodings_are_announced(grpc_library: LibraryTarget, method: str) -> None:
    """The server SHOULD announce every encoding that it accepts in each successful response."""
    connection = serve(grpc_library).connect()
    answer = asked(connection, method, message(TEXT), None)
    asserts.ended_with(answer, "OK")
    accepted = {name for name in ("gzip", "deflate") if accepts(connection, method, name).status == 0}
    names = announced(answer)
    asserts.true("the response announces grpc-accept-encoding", names is not None, str(answer))
    asserts.equal("what is accepted but not announced", set(), accepted - (names or set()))


@requirement("GRPC-MSG-21")
@kinds
@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
def test_encoding_of_the_request_is_announced(grpc_library: LibraryTarget, method: str, encoding: str) -> None:
    """The server MUST announce the encoding of a request that it accepted in the response to it."""
    answer = accepts(serve(grpc_library).connect(), method, encoding)
    if answer.status != 0:
        pytest.skip(f"the server does not accept {encoding}")
    asserts.true(f"the response announces {encoding}", encoding in (announced(answer) or ()), announced(answer))


def accepts(connection: RawConnection, method: str, encoding: str) -> Answer:
    """The answer to a request in an encoding."""
    packed = PACKED if encoding == "gzip" else zlib.compress(TEXT)
    return asked(connection, method, message(packed, flag=1), encoding)


@requirement("GRPC-MSG-22")
@kinds
@pytest.mark.parametrize("size", [1000, 1001], ids=["limit-exactly", "limit-and-one"])
def test_limit_is_of_the_decompressed_size(grpc_library: LibraryTarget, method: str, size: int) -> None:
    """The server MUST apply its size limit to what a message decompresses to."""
    connection = serve(grpc_library, options=[(LIMIT, 1000)]).connect()
    answer = asked(connection, method, message(gzip.compress(bytes(size)), flag=1))
    asserts.ended_with(answer, "OK" if size == 1000 else "RESOURCE_EXHAUSTED")


@requirement("GRPC-MSG-22")
@kinds
def test_decompression_stops_at_the_limit(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST stop decompressing a message at its size limit, 4 MiB without another."""
    packed = bomb()
    connection = serve(grpc_library).connect()
    try:
        peak = PeakMemory()
    except PeakUnknown as unknown:
        pytest.skip(str(unknown))
    stream = connection.start(path(method), metadata=[("grpc-encoding", "gzip")])
    with asserts.owed("a window for the message"):
        connection.send_message(stream, packed, flag=1, end_stream=True)
    asserts.ended_with(asserts.answered(connection, stream), "RESOURCE_EXHAUSTED")
    asserts.true("less than 64 MiB are taken of 128", peak.growth() < 64 << 20, f"{peak.growth() >> 20} MiB more")


@functools.cache
def bomb() -> bytes:
    return gzip.compress(bytes(BOMB), compresslevel=6)


@requirement("GRPC-MSG-27")
@pytest.mark.parametrize("method", ["ClientStream", "Bidi"], ids=["client-stream", "bidi"])
def test_each_message_decompresses_alone(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST decompress each message of a stream by itself."""
    answer = asked(serve(grpc_library).connect(), method, message(PACKED, flag=1) * 3)
    asserts.ended_with(answer, "OK")
    asserts.equal("the messages in the handler", [TEXT] * 3, got(grpc_library))


# Responses.


def unpacked(answer: Answer) -> list[bytes]:
    """The response messages, decompressed where they are flagged; octets that do not decompress stay as they are."""
    return [_gunzip(each.payload) if each.flag else each.payload for each in answer.messages]


def _gunzip(octets: bytes) -> bytes:
    try:
        return gzip.decompress(octets)
    except (OSError, EOFError, zlib.error):
        return octets


def shape(answer: Answer) -> tuple[bytes | None, list[int], list[bytes]]:
    """The encoding of a response, the flags of its messages, and the messages."""
    encoding = answer.blocks[0].first("grpc-encoding") if answer.blocks else None
    return encoding, [each.flag for each in answer.messages], unpacked(answer)


async def compressed_stream(request: bytes, context: Any) -> Any:
    context.set_compression(grpc.Compression.Gzip)
    yield TEXT
    context.disable_next_message_compression()
    yield TEXT
    yield TEXT


async def compressed_bidi(requests: Any, context: Any) -> Any:
    async for request in requests:
        async for response in compressed_stream(request, context):
            yield response


async def compressed_after_headers(request: bytes, context: Any) -> bytes:
    context.set_compression(grpc.Compression.Gzip)
    await context.send_initial_metadata(())
    return TEXT


COMPRESSING = {
    "Stream": server_streaming(compressed_stream),
    "Bidi": bidi(compressed_bidi),
    "Unary": unary(compressed_after_headers),
}


def response(target: LibraryTarget, method: str, metadata: Any = ()) -> Answer:
    """The answer of a handler that asks for compression."""
    connection = target.serve(COMPRESSING).connect()
    return connection.answer(connection.call(path(method), b"go", metadata=metadata))


@requirement("GRPC-MSG-28")
@pytest.mark.parametrize("method", ["Unary", "Stream", "Bidi"], ids=["unary", "server-stream", "bidi"])
def test_set_compression_compresses(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST send `grpc-encoding: gzip` and flag 1 after set_compression(Gzip)."""

    def exchange(target: LibraryTarget) -> Any:
        encoding, flags, payloads = shape(response(target, method, TAKES_ALL))
        return encoding, flags[:1], payloads[:1]

    asserts.parity(grpc_library, exchange, expected=(b"gzip", [1], [TEXT]))


@requirement("GRPC-MSG-29")
@response_streams
def test_disabling_is_for_the_next_message(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST send exactly the next message as it is after disable_next_message_compression()."""
    with asserts.owed("the end of the response"):
        answer = response(grpc_library, method, TAKES_ALL)
    asserts.ended_with(answer, "OK")
    _, flags, payloads = shape(answer)
    asserts.equal("the messages", [TEXT] * 3, payloads)
    if not any(flags):
        pytest.skip("the server compresses no message of this response (GRPC-MSG-28)")
    asserts.equal("the flags of the messages", [1, 0, 1], flags)


@requirement("GRPC-MSG-30")
@pytest.mark.parametrize("method", ["AfterMetadata", "AfterMessage"], ids=["after-metadata", "after-message"])
def test_set_compression_after_headers_raises(grpc_library: LibraryTarget, method: str) -> None:
    """The server SHOULD raise RuntimeError in set_compression once headers are sent."""

    def exchange(target: LibraryTarget) -> Any:
        def note_error(context: Any) -> None:
            try:
                context.set_compression(grpc.Compression.Gzip)
            except Exception as error:
                target.seen.note("error", type(error))
            target.seen.note("error", None)

        async def after_metadata(request: bytes, context: Any) -> Any:
            await context.send_initial_metadata(())
            note_error(context)
            yield request

        async def after_message(request: bytes, context: Any) -> Any:
            yield request
            note_error(context)

        handlers = {
            "AfterMetadata": server_streaming(after_metadata),
            "AfterMessage": server_streaming(after_message),
        }
        outcome = target.serve(handlers).call(method, b"go")
        return outcome.code, outcome.messages, target.seen.values("error")[0]

    asserts.parity(grpc_library, exchange, expected=("OK", (b"go",), RuntimeError))


@requirement("GRPC-MSG-31")
@kinds
def test_compression_of_the_server(grpc_library: LibraryTarget, method: str) -> None:
    """The server SHOULD compress responses when made with compression=Gzip, or refuse to be made."""

    def exchange(target: LibraryTarget) -> Any:
        connection = serve(target, compression=grpc.Compression.Gzip).connect()
        return shape(connection.answer(connection.call(path(method), TEXT, metadata=TAKES_ALL)))

    def refused_or_compressed(target: LibraryTarget) -> Any:
        try:
            return exchange(target)
        except (NotImplementedError, ValueError):
            return (b"gzip", [1], [TEXT])  # Told at construction that there is no compression: as good.

    asserts.parity(grpc_library, refused_or_compressed, expected=(b"gzip", [1], [TEXT]))


@requirement("GRPC-MSG-32")
@response_streams
def test_no_encoding_that_the_client_lacks(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST send messages as they are to a client that lists only `identity`."""
    with asserts.owed("the end of the response"):
        answer = response(grpc_library, method, TAKES_IDENTITY)
    asserts.ended_with(answer, "OK")
    _, flags, payloads = shape(answer)
    asserts.equal("the flags of the messages", [0, 0, 0], flags)
    asserts.equal("the messages", [TEXT] * 3, payloads)
