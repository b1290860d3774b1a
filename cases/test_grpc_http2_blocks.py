"""HTTP/2: header blocks, in pieces and compressed, good and bad."""

from __future__ import annotations

from typing import Any

import pytest
from hpack import Encoder

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, path, unary
from pytest_grpc_conformance.wire.connection import RawConnection, request_fields
from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind, Setting, frame, message

ECHOES = path("Echo")
MANY_PINGS = (("grpc.http2.max_ping_strikes", 0),)
LITERAL = b"\x00\x01x\x64" + b"v" * 100
"""A field of a new name and 100 octets, which enters no table."""


def connected(library: LibraryTarget, **options: Any) -> RawConnection:
    """A connection to a server that echoes."""
    return library.serve({"Echo": ECHO}, options=MANY_PINGS).connect(**options)


def literal_block() -> bytes:
    """The header block of a call that echoes, without a trace in any table: it may be sent or not."""
    return Encoder().encode([(name, value, True) for name, value in request_fields(ECHOES)])


def integer(value: int, prefix: int, pattern: int) -> bytes:
    """An integer of HPACK (RFC 7541, section 5.1) after the bits of a pattern."""
    most = (1 << prefix) - 1
    if value < most:
        return bytes([pattern | value])
    octets, value = [pattern | most], value - most
    while value >= 128:
        octets.append(value % 128 | 128)
        value //= 128
    return bytes([*octets, value])


def in_pieces(connection: RawConnection, *pieces: bytes) -> int:
    """Open a stream with a header block in HEADERS and CONTINUATION frames; its id."""
    stream = connection.new_stream()
    for at, piece in enumerate(pieces):
        flags = Flag.END_HEADERS if at == len(pieces) - 1 else Flag.NONE
        connection.frame(Kind.CONTINUATION if at else Kind.HEADERS, flags, stream, piece)
    return stream


def echoes(connection: RawConnection, stream: int) -> None:
    """A stream whose headers are out gives a message back."""
    connection.send_message(stream, b"request", end_stream=True)
    answer = asserts.answered(connection, stream)
    asserts.ended_with(answer, "OK")
    asserts.equal("the messages", (b"request",), answer.payloads)


@requirement("GRPC-H2-12")
def test_block_is_split_at_any_byte(grpc_library: LibraryTarget) -> None:
    """The server MUST take a header block in two pieces, wherever they part, with empty ones too."""
    connection = connected(grpc_library)
    block = literal_block()
    streams = []
    for at in range(len(block) + 1):
        stream = in_pieces(connection, block[:at], block[at:])
        connection.send_message(stream, b"split", end_stream=True)
        streams.append(stream)
    for at, stream in enumerate(streams):
        answer = asserts.answered(connection, stream)
        asserts.equal(f"the outcome with {at} octets in HEADERS", (0, (b"split",)), (answer.status, answer.payloads))


@requirement("GRPC-H2-12")
def test_empty_block_pieces_change_nothing(grpc_library: LibraryTarget) -> None:
    """The server MUST take a header block with empty pieces at its start, middle and end."""
    connection = connected(grpc_library)
    block = connection.block(request_fields(ECHOES))
    echoes(connection, in_pieces(connection, b"", block[:9], b"", block[9:], b""))


@requirement("GRPC-H2-13")
def test_twenty_continuations_work(grpc_library: LibraryTarget) -> None:
    """The server SHOULD take a header block in HEADERS and 20 small CONTINUATION frames."""
    connection = connected(grpc_library)
    block = literal_block()
    cuts = [len(block) * at // 21 for at in range(22)]
    pieces = [block[cuts[at] : cuts[at + 1]] for at in range(21)]
    echoes(connection, in_pieces(connection, *pieces))


@requirement("GRPC-H2-14")
@pytest.mark.parametrize(
    ("piece", "count"), [pytest.param(b"", 1_000, id="empty"), pytest.param(LITERAL * 156, 64, id="1-MiB")]
)
def test_run_of_continuations_is_cut_off(grpc_library: LibraryTarget, piece: bytes, count: int) -> None:
    """The server SHOULD cut off a run of CONTINUATION frames, whether they are empty or long."""
    connection = connected(grpc_library)
    with asserts.owed("the acknowledgement of a PING"):
        connection.fence()  # The server's settings, and what it limits by them, are acknowledged.
    stream = connection.new_stream()
    octets = frame(Kind.HEADERS, 0, stream, literal_block()) + frame(Kind.CONTINUATION, 0, stream, piece) * count
    octets += frame(Kind.CONTINUATION, Flag.END_HEADERS, stream)
    octets += frame(Kind.DATA, Flag.END_STREAM, stream, message(b"after"))
    connection.send(octets, f"a call with {count} CONTINUATION of {len(piece)} octets before the last one")
    answer = asserts.answered(connection, stream)
    asserts.true("the run of CONTINUATION frames is cut off", answer.status != 0, str(answer))


@requirement("GRPC-H2-15")
@pytest.mark.parametrize(
    ("kind", "flags", "on", "payload"),
    [
        pytest.param(Kind.DATA, Flag.NONE, "same", b"x", id="data"),
        pytest.param(Kind.HEADERS, Flag.END_HEADERS, "next", b"\x83", id="headers"),
        pytest.param(Kind.PRIORITY, Flag.NONE, "same", bytes(5), id="priority"),
        pytest.param(Kind.RST_STREAM, Flag.NONE, "same", bytes(4), id="reset"),
        pytest.param(Kind.SETTINGS, Flag.NONE, "connection", b"", id="settings"),
        pytest.param(Kind.PING, Flag.NONE, "connection", bytes(8), id="ping"),
        pytest.param(Kind.GOAWAY, Flag.NONE, "connection", bytes(8), id="goaway"),
        pytest.param(Kind.WINDOW_UPDATE, Flag.NONE, "connection", b"\0\0\0\1", id="window-update"),
        pytest.param(0xEE, Flag.NONE, "connection", b"x", id="unknown-type"),
    ],
)
def test_frame_inside_a_header_block_ends_the_connection(
    grpc_library: LibraryTarget, kind: int, flags: Flag, on: str, payload: bytes
) -> None:
    """The server MUST treat another frame before the end of a header block as a connection error."""
    connection = connected(grpc_library)
    stream, block = connection.new_stream(), literal_block()
    connection.frame(Kind.HEADERS, Flag.NONE, stream, block[:9])
    connection.frame(kind, flags, {"same": stream, "next": stream + 2, "connection": 0}[on], payload)
    connection.frame(Kind.CONTINUATION, Flag.END_HEADERS, stream, block[9:])
    connection.new_stream()
    asserts.connection_error(connection, ErrorCode.PROTOCOL_ERROR, probe=ECHOES)


@requirement("GRPC-H2-15")
@pytest.mark.parametrize("where", ["idle-stream", "open-stream", "other-stream", "connection"])
def test_stray_continuation_ends_the_connection(grpc_library: LibraryTarget, where: str) -> None:
    """The server MUST treat CONTINUATION without its HEADERS as a connection error."""
    connection = connected(grpc_library)
    block = literal_block()
    stream = connection.start(ECHOES) if where == "open-stream" else connection.new_stream()
    if where == "other-stream":
        connection.frame(Kind.HEADERS, Flag.NONE, stream, block[:9])
        stream = connection.new_stream()
    target = 0 if where == "connection" else stream
    connection.frame(Kind.CONTINUATION, Flag.END_HEADERS, target, block[9:] if where == "other-stream" else b"")
    asserts.connection_error(connection, ErrorCode.PROTOCOL_ERROR, probe=ECHOES)


def undecodable(connection: RawConnection, ending: bytes) -> None:
    """A call's header block that ends in octets which do not decode; its message follows."""
    stream = connection.new_stream()
    connection.frame(Kind.HEADERS, Flag.END_HEADERS, stream, literal_block() + ending)
    connection.frame(Kind.DATA, Flag.END_STREAM, stream, b"\0\0\0\0\3bad")
    asserts.connection_error(connection, ErrorCode.COMPRESSION_ERROR, probe=ECHOES)


@requirement("GRPC-H2-22")
@pytest.mark.parametrize(
    "ending",
    [
        pytest.param(b"\x80", id="index-0"),
        pytest.param(integer(5_000, 7, 0x80), id="index-out-of-range"),
        pytest.param(integer(1 << 62, 7, 0x80), id="index-of-62-bits"),
        pytest.param(b"\x00\x01x\x05val", id="truncated-value"),
        pytest.param(b"\x00\x01x", id="truncated-field"),
        pytest.param(b"\x7f\x80", id="truncated-integer"),
        pytest.param(b"\x20", id="table-size-after-a-field"),
    ],
)
def test_undecodable_block_ends_the_connection(grpc_library: LibraryTarget, ending: bytes) -> None:
    """The server MUST treat a header block that does not decode as a COMPRESSION_ERROR."""
    undecodable(connected(grpc_library), ending)


@requirement("GRPC-H2-22")
@pytest.mark.parametrize(
    "value",
    [
        pytest.param(b"\xff\xff\xff\xff", id="end-of-string"),
        pytest.param(b"\x1f\xff", id="padding-of-11-bits"),
        pytest.param(b"\x18", id="padding-of-zeros"),
    ],
)
def test_bad_huffman_code_ends_the_connection(grpc_library: LibraryTarget, value: bytes) -> None:
    """The server MUST treat a Huffman code that RFC 7541 forbids as a COMPRESSION_ERROR."""
    undecodable(connected(grpc_library), b"\x00\x01x" + bytes([0x80 | len(value)]) + value)


@requirement("GRPC-H2-22")
def test_table_size_above_the_limit_ends_the_connection(grpc_library: LibraryTarget) -> None:
    """The server MUST treat a table size above its HEADER_TABLE_SIZE as a COMPRESSION_ERROR."""
    connection = connected(grpc_library)
    with asserts.owed("SETTINGS"):
        connection.wait(connection.received.settings, "the server's settings")
    limit = max(4096, connection.received.settings().get(Setting.HEADER_TABLE_SIZE, 4096))
    stream = connection.new_stream()
    connection.frame(Kind.HEADERS, Flag.END_HEADERS, stream, integer(limit + 1, 5, 0x20) + literal_block())
    connection.frame(Kind.DATA, Flag.END_STREAM, stream, b"\0\0\0\0\3bad")
    asserts.connection_error(connection, ErrorCode.COMPRESSION_ERROR, probe=ECHOES)


@requirement("GRPC-H2-23")
@pytest.mark.parametrize("huffman", [True, False], ids=["huffman", "plain"])
def test_requests_without_dynamic_table_work(grpc_library: LibraryTarget, huffman: bool) -> None:
    """The server MUST take header blocks of a client whose table is empty, with Huffman codes and without."""
    connection = connected(grpc_library)
    connection.encoder.header_table_size = 0
    for _ in range(2):
        stream = connection.new_stream()
        block = connection.block([*request_fields(ECHOES), ("x-note", "said once")], huffman=huffman)
        connection.frame(Kind.HEADERS, Flag.END_HEADERS, stream, block)
        echoes(connection, stream)


@requirement("GRPC-H2-23")
def test_table_size_updates_in_requests_work(grpc_library: LibraryTarget) -> None:
    """The server MUST follow table-size updates at the start of a block, down to 0 and up again."""
    connection = connected(grpc_library)
    fields = [*request_fields(ECHOES), ("x-note", "said again")]
    for sizes in ((), (0, 4096), (), (60,), (), (0,), ()):
        for size in sizes:
            connection.encoder.header_table_size = size
        stream = connection.new_stream()
        connection.frame(Kind.HEADERS, Flag.END_HEADERS, stream, connection.block(fields))
        echoes(connection, stream)


@requirement("GRPC-H2-23")
@pytest.mark.parametrize("when", ["first", "later"])
def test_responses_without_dynamic_table_work(grpc_library: LibraryTarget, when: str) -> None:
    """The server MUST use no dynamic table once the client's HEADER_TABLE_SIZE is 0."""
    empty = {int(Setting.HEADER_TABLE_SIZE): 0}

    async def noted(request: bytes, context: Any) -> bytes:
        await context.send_initial_metadata((("x-note", "said each time"),))
        return request

    served = grpc_library.serve({"Echo": unary(noted)})
    connection = served.connect(settings=empty if when == "first" else None)
    if when == "later":
        asserts.still_serves(connection, ECHOES)
        connection.settings(empty)
    for _ in range(2):
        with asserts.owed("an answer that decodes without a table"):
            answer = connection.unary(ECHOES, b"still")
        asserts.ended_with(answer, "OK")
        asserts.true("the initial metadata came", answer.headers is not None, str(answer))
        asserts.equal("the note", b"said each time", answer.headers and answer.headers.first("x-note"))


@requirement("GRPC-H2-31")
def test_small_header_list_size_does_not_hold_the_call(grpc_library: LibraryTarget) -> None:
    """The server SHOULD end a call whose trailers exceed the client's MAX_HEADER_LIST_SIZE, in any way."""

    async def long_trailers(request: bytes, context: Any) -> bytes:
        context.set_trailing_metadata((("x-long", "v" * 2_000),))
        return request

    served = grpc_library.serve({"Long": unary(long_trailers), "Echo": ECHO})
    connection = served.connect(settings={Setting.MAX_HEADER_LIST_SIZE: 1_000})
    asserts.answered(connection, connection.call(path("Long"), b"request"))
    asserts.still_serves(connection, ECHOES)
