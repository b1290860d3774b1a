"""HTTP/2: settings, pings, and what every frame has in common."""

from __future__ import annotations

import asyncio
import struct
import threading
from typing import Any

import pytest
from hyperframe.frame import PingFrame, SettingsFrame

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, path, unary
from pytest_grpc_conformance.wire.connection import RawConnection, request_fields
from pytest_grpc_conformance.wire.frames import (
    DEFAULT_MAX_FRAME,
    ErrorCode,
    Flag,
    Kind,
    Setting,
    error_name,
    message,
    padded,
    settings_payload,
)

ECHOES = path("Echo")
MANY_PINGS = (("grpc.http2.max_ping_strikes", 0),)
"""Pings are not counted, so that a case may use more than a few."""
RESERVED = 0x80000000
UNKNOWN_KIND = 0xEE
PRIORITY = struct.pack(">IB", 0, 15)
"""A dependency on stream 0, with weight 16."""
LARGEST = (1 << 31) - 1
LONGEST_FRAME = (1 << 24) - 1


def connected(library: LibraryTarget, **options: Any) -> RawConnection:
    """A connection to a server that echoes, and does not count pings."""
    return library.serve({"Echo": ECHO}, options=MANY_PINGS).connect(**options)


def acknowledged(connection: RawConnection) -> list[bytes]:
    """The payloads of the PING acknowledgements, in order."""
    return [f.opaque_data for f in connection.received.frames if isinstance(f, PingFrame) and "ACK" in f.flags]


def settings_acknowledged(connection: RawConnection) -> int:
    """How many SETTINGS the server has acknowledged."""
    return sum(isinstance(f, SettingsFrame) and "ACK" in f.flags for f in connection.received.frames)


def echoes(connection: RawConnection, stream: int, payload: bytes) -> None:
    """A stream whose request is out gets its echo."""
    answer = asserts.answered(connection, stream)
    asserts.ended_with(answer, "OK")
    asserts.equal("the messages", (payload,), answer.payloads)


@requirement("GRPC-H2-01")
def test_settings_come_first(grpc_library: LibraryTarget) -> None:
    """The server MUST begin with SETTINGS on stream 0."""
    connection = connected(grpc_library)
    with asserts.owed("SETTINGS"):
        first = connection.wait(lambda: connection.received.frames, "the first frame")[0]
    found = (type(first).__name__, first.stream_id, "ACK" in first.flags)
    asserts.equal("the first frame", ("SettingsFrame", 0, False), found)


@requirement("GRPC-H2-01")
def test_each_settings_is_acknowledged(grpc_library: LibraryTarget) -> None:
    """The server MUST acknowledge each SETTINGS of the client, once."""
    connection = connected(grpc_library)
    for size in (1 << 16, 1 << 17):
        connection.settings({Setting.INITIAL_WINDOW_SIZE: size})
    connection.settings({})
    with asserts.owed("the acknowledgement of four SETTINGS"):
        connection.wait(lambda: settings_acknowledged(connection) >= 4, "four acknowledgements of SETTINGS")
        connection.fence()
    asserts.equal("the acknowledgements of four SETTINGS", 4, settings_acknowledged(connection))


@requirement("GRPC-H2-02")
@pytest.mark.parametrize("when", ["first", "later"])
def test_unknown_settings_are_ignored(grpc_library: LibraryTarget, when: str) -> None:
    """The server MUST ignore settings that it does not know."""
    unknown = {0: 7, 0x0A0A: 1, 0xFAFA: 0xFFFFFFFF, 0xFF00: 0}
    connection = connected(grpc_library, settings=unknown if when == "first" else None)
    if when == "later":
        connection.settings(unknown)
    wanted = 1 if when == "first" else 2
    with asserts.owed("the acknowledgement of SETTINGS"):
        connection.wait(lambda: settings_acknowledged(connection) >= wanted, "the acknowledgement of SETTINGS")
    asserts.still_serves(connection, ECHOES)


@requirement("GRPC-H2-03")
@pytest.mark.parametrize(
    ("flags", "stream", "payload"),
    [
        pytest.param(Flag.NONE, 0, bytes(5), id="length-5"),
        pytest.param(Flag.ACK, 0, settings_payload({Setting.HEADER_TABLE_SIZE: 4096}), id="acknowledgement-not-empty"),
        pytest.param(Flag.NONE, 1, b"", id="on-a-stream"),
    ],
)
def test_malformed_settings_end_the_connection(
    grpc_library: LibraryTarget, flags: Flag, stream: int, payload: bytes
) -> None:
    """The server MUST treat malformed SETTINGS as a connection error."""
    connection = connected(grpc_library)
    connection.frame(Kind.SETTINGS, flags, stream, payload)
    asserts.connection_error(connection, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.PROTOCOL_ERROR, probe=ECHOES)


@requirement("GRPC-H2-04")
@pytest.mark.parametrize(
    ("setting", "value"),
    [
        pytest.param(Setting.INITIAL_WINDOW_SIZE, LARGEST + 1, id="window-too-large"),
        pytest.param(Setting.MAX_FRAME_SIZE, DEFAULT_MAX_FRAME - 1, id="frame-too-small"),
        pytest.param(Setting.MAX_FRAME_SIZE, LONGEST_FRAME + 1, id="frame-too-large"),
        pytest.param(Setting.ENABLE_PUSH, 2, id="push-2"),
    ],
)
def test_setting_out_of_range_ends_the_connection(grpc_library: LibraryTarget, setting: Setting, value: int) -> None:
    """The server MUST treat a setting outside its range as a connection error."""
    connection = connected(grpc_library)
    connection.settings({setting: value})
    asserts.connection_error(connection, probe=ECHOES)


@requirement("GRPC-H2-04")
@pytest.mark.parametrize(
    "values",
    [
        pytest.param((0, LARGEST, DEFAULT_MAX_FRAME), id="no-push"),
        pytest.param((1, LARGEST, LONGEST_FRAME), id="largest"),
    ],
)
def test_settings_at_their_limits_are_accepted(grpc_library: LibraryTarget, values: tuple[int, int, int]) -> None:
    """The server MUST accept settings at the ends of their ranges."""
    push, window, longest = values
    asked = {Setting.ENABLE_PUSH: push, Setting.INITIAL_WINDOW_SIZE: window, Setting.MAX_FRAME_SIZE: longest}
    asserts.still_serves(connected(grpc_library, settings=asked), ECHOES)


@requirement("GRPC-H2-05")
@pytest.mark.parametrize(
    ("kind", "payload", "code"),
    [
        pytest.param(Kind.CONTINUATION, b"", ErrorCode.PROTOCOL_ERROR, id="protocol"),
        pytest.param(Kind.PING, bytes(7), ErrorCode.FRAME_SIZE_ERROR, id="frame-size"),
        pytest.param(
            Kind.SETTINGS,
            settings_payload({Setting.INITIAL_WINDOW_SIZE: LARGEST + 1}),
            ErrorCode.FLOW_CONTROL_ERROR,
            id="flow-control",
        ),
        pytest.param(Kind.HEADERS, b"\x80", ErrorCode.COMPRESSION_ERROR, id="compression"),
    ],
)
def test_goaway_names_the_connection_error(
    grpc_library: LibraryTarget, kind: Kind, payload: bytes, code: ErrorCode
) -> None:
    """The server SHOULD send GOAWAY with the error's code before it ends the connection for it."""
    connection = connected(grpc_library)
    with asserts.owed("the acknowledgement of a PING"):
        connection.fence()  # A GOAWAY by luck, in the same write as the server's first frames, does not count.
    on_stream = kind in (Kind.HEADERS, Kind.CONTINUATION)
    connection.frame(kind, Flag.END_HEADERS if on_stream else Flag.NONE, 1 if on_stream else 0, payload)
    asserts.closed(connection)
    given = [error_name(frame.error_code) for frame in connection.received.goaways()]
    asserts.equal("the code of the last GOAWAY", [code.name], given[-1:])


@requirement("GRPC-H2-06")
@pytest.mark.parametrize("streams", [0, 100], ids=lambda count: f"streams={count}")
def test_pings_are_answered_in_order(grpc_library: LibraryTarget, streams: int) -> None:
    """The server MUST answer each PING with its octets and ACK, in order."""

    async def waits(request: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    connection = grpc_library.serve({"Waits": unary(waits)}, options=MANY_PINGS).connect()
    for _ in range(streams):
        connection.call(path("Waits"))
    sent = [b"ping%04d" % number for number in range(10)]
    for payload in sent:
        connection.ping(payload)
    with asserts.owed("the acknowledgement of ten PINGs"):
        connection.wait(lambda: len(acknowledged(connection)) >= len(sent), "ten acknowledgements of PING")
    asserts.equal("the acknowledged octets", sent, acknowledged(connection))


@requirement("GRPC-H2-06")
def test_ping_is_answered_while_a_handler_blocks(grpc_library: LibraryTarget) -> None:
    """The server MUST answer PING also while a handler blocks the event loop."""
    release = threading.Event()

    async def blocks(request: bytes, context: Any) -> bytes:
        grpc_library.seen.note("blocks")
        release.wait(3 * grpc_library.timeout)  # Longer than the case waits for its answer.
        return b"done"

    connection = grpc_library.serve({"Blocks": unary(blocks)}).connect()
    stream = connection.call(path("Blocks"))
    asserts.seen(grpc_library, "blocks")
    try:
        with asserts.owed("the acknowledgement of a PING"):
            connection.fence()
    finally:
        release.set()
    asserts.ended_with(asserts.answered(connection, stream), "OK")


@requirement("GRPC-H2-07")
def test_ping_with_ack_is_not_answered(grpc_library: LibraryTarget) -> None:
    """The server MUST NOT answer a PING that has the ACK flag."""
    connection = connected(grpc_library)
    connection.frame(Kind.PING, Flag.ACK, payload=b"unasked!")
    with asserts.owed("the acknowledgement of a later PING"):
        connection.fence(b"question")
    asserts.equal("the acknowledged octets", [b"question"], acknowledged(connection))


@requirement("GRPC-H2-07")
@pytest.mark.parametrize(
    ("stream", "length"), [pytest.param(0, 7, id="length-7"), pytest.param(1, 8, id="on-a-stream")]
)
def test_malformed_ping_ends_the_connection(grpc_library: LibraryTarget, stream: int, length: int) -> None:
    """The server MUST treat a PING of a wrong length, or on a stream, as a connection error."""
    connection = connected(grpc_library)
    connection.frame(Kind.PING, 0, stream, bytes(length))
    asserts.connection_error(connection, ErrorCode.FRAME_SIZE_ERROR, ErrorCode.PROTOCOL_ERROR, probe=ECHOES)


@requirement("GRPC-H2-08")
def test_undefined_ping_flags_are_ignored(grpc_library: LibraryTarget) -> None:
    """The server MUST answer a PING whatever its undefined flags are."""
    connection = connected(grpc_library)
    connection.frame(Kind.PING, 0xFE, payload=b"flagflag")
    with asserts.owed("the acknowledgement of a PING with flags 0xFE"):
        connection.wait(lambda: b"flagflag" in acknowledged(connection), "the acknowledgement of PING")


@requirement("GRPC-H2-08")
def test_undefined_data_flag_is_ignored(grpc_library: LibraryTarget) -> None:
    """The server MUST ignore the undefined flag 0x40 of DATA."""
    connection = connected(grpc_library)
    stream = connection.start(ECHOES)
    connection.frame(Kind.DATA, 0x40 | Flag.END_STREAM, stream, message(b"flagged"))
    echoes(connection, stream, b"flagged")


@requirement("GRPC-H2-08")
@pytest.mark.parametrize("flags", [0x40, 0xD2], ids=lambda flags: f"0x{flags:x}")
def test_undefined_headers_flags_are_ignored(grpc_library: LibraryTarget, flags: int) -> None:
    """The server MUST ignore undefined flags of HEADERS."""
    connection = connected(grpc_library)
    stream = connection.new_stream()
    connection.frame(Kind.HEADERS, flags | Flag.END_HEADERS, stream, connection.block(request_fields(ECHOES)))
    connection.send_message(stream, b"flagged", end_stream=True)
    echoes(connection, stream, b"flagged")


@requirement("GRPC-H2-09")
def test_reserved_bit_is_ignored(grpc_library: LibraryTarget) -> None:
    """The server MUST ignore the reserved bit before a stream's identifier."""
    connection = connected(grpc_library)
    stream = connection.new_stream()
    connection.frame(Kind.SETTINGS, 0, RESERVED)
    block = connection.block(request_fields(ECHOES))
    connection.frame(Kind.HEADERS, Flag.END_HEADERS, stream | RESERVED, block)
    connection.frame(Kind.DATA, Flag.END_STREAM, stream | RESERVED, message(b"reserved"))
    echoes(connection, stream, b"reserved")
    connection.frame(Kind.PING, 0, RESERVED, b"reserved")
    with asserts.owed("the acknowledgement of a PING with the reserved bit"):
        connection.wait(lambda: b"reserved" in acknowledged(connection), "the acknowledgement of PING")


@requirement("GRPC-H2-10")
@pytest.mark.parametrize("where", ["connection", "idle-stream", "open-stream"])
def test_frames_of_unknown_type_are_ignored(grpc_library: LibraryTarget, where: str) -> None:
    """The server MUST ignore frames of a type that it does not know."""
    connection = connected(grpc_library)
    stream = connection.start(ECHOES)
    target = {"connection": 0, "idle-stream": stream + 2, "open-stream": stream}[where]
    for length in (0, 8, DEFAULT_MAX_FRAME):
        connection.frame(UNKNOWN_KIND, 0xFF, target, bytes(length))
    connection.send_message(stream, b"known", end_stream=True)
    echoes(connection, stream, b"known")
    asserts.still_serves(connection, ECHOES)


@requirement("GRPC-H2-11")
def test_priority_frames_change_nothing(grpc_library: LibraryTarget) -> None:
    """The server MUST accept PRIORITY on idle, open and closed streams, and go on as without it."""
    connection = connected(grpc_library)
    connection.frame(Kind.PRIORITY, 0, 7, PRIORITY)
    stream = connection.start(ECHOES)
    connection.frame(Kind.PRIORITY, 0, stream, PRIORITY)
    connection.send_message(stream, b"open", end_stream=True)
    echoes(connection, stream, b"open")
    connection.frame(Kind.PRIORITY, 0, stream, PRIORITY)
    asserts.still_serves(connection, ECHOES)


@requirement("GRPC-H2-11")
@pytest.mark.parametrize(
    "dependency",
    [pytest.param(0, id="root"), pytest.param(RESERVED, id="exclusive"), pytest.param(9, id="idle-stream")],
)
def test_priority_fields_of_headers_change_nothing(grpc_library: LibraryTarget, dependency: int) -> None:
    """The server MUST accept the priority fields of HEADERS, and go on as without them."""
    connection = connected(grpc_library)
    stream = connection.new_stream()
    payload = struct.pack(">IB", dependency, 255) + connection.block(request_fields(ECHOES))
    connection.frame(Kind.HEADERS, Flag.END_HEADERS | Flag.PRIORITY, stream, payload)
    connection.send_message(stream, b"prior", end_stream=True)
    echoes(connection, stream, b"prior")


@requirement("GRPC-H2-11")
@pytest.mark.parametrize("padding", [0, 1, 255], ids=lambda padding: f"padding={padding}")
@pytest.mark.parametrize("fields", [b"", PRIORITY], ids=["plain", "priority"])
def test_padded_headers_are_accepted(grpc_library: LibraryTarget, fields: bytes, padding: int) -> None:
    """The server MUST accept padded HEADERS, and go on as without padding."""
    connection = connected(grpc_library)
    stream = connection.new_stream()
    flags = Flag.END_HEADERS | Flag.PADDED | (Flag.PRIORITY if fields else Flag.NONE)
    payload = padded(fields + connection.block(request_fields(ECHOES)), padding)
    connection.frame(Kind.HEADERS, flags, stream, payload)
    connection.send_message(stream, b"padded", end_stream=True)
    echoes(connection, stream, b"padded")


@requirement("GRPC-H2-21")
@pytest.mark.parametrize("kind", [Kind.DATA, Kind.HEADERS, Kind.PING], ids=lambda kind: kind.name.lower())
def test_frame_above_the_announced_size_is_refused(grpc_library: LibraryTarget, kind: Kind) -> None:
    """The server MUST treat a frame above its MAX_FRAME_SIZE as a FRAME_SIZE_ERROR."""
    connection = connected(grpc_library)
    with asserts.owed("SETTINGS"):
        connection.wait(connection.received.settings, "the server's settings")
        connection.fence()
    longest = connection.received.settings().get(Setting.MAX_FRAME_SIZE, DEFAULT_MAX_FRAME)
    if longest == LONGEST_FRAME:
        return  # No frame can be longer.
    stream = connection.start(ECHOES) if kind is Kind.DATA else connection.new_stream()
    flags = {Kind.DATA: Flag.NONE, Kind.HEADERS: Flag.END_HEADERS, Kind.PING: Flag.NONE}[kind]
    start = connection.block(request_fields(ECHOES)) if kind is Kind.HEADERS else b""
    # The rest of a header block is a thousandfold "content-length" without a value, indexed in the static table.
    payload = start + b"\x9c" * (longest + 1 - len(start))
    connection.frame(kind, flags, 0 if kind is Kind.PING else stream, payload)
    # Of HEADERS and PING the connection must end; of DATA the stream may suffice (RFC 9113, section 4.2).
    if kind is Kind.DATA:
        with asserts.owed("a FRAME_SIZE_ERROR"):
            later = connection.call(ECHOES, b"later")
            connection.wait(
                lambda: connection.closed or connection.received.ended(stream) or connection.received.ended(later),
                "the end of the stream or of the connection",
            )
        if connection.so_far(stream).reset == ErrorCode.FRAME_SIZE_ERROR:
            return
    asserts.connection_error(connection, ErrorCode.FRAME_SIZE_ERROR, probe=ECHOES)


@requirement("GRPC-H2-34")
def test_ping_flood_is_tolerated_or_named(grpc_library: LibraryTarget) -> None:
    """The server SHOULD tolerate a flood of PINGs, or end it by GOAWAY "too_many_pings"."""
    connection = grpc_library.serve({"Echo": ECHO}).connect()
    for number in range(20):
        connection.ping(b"ping%04d" % number)
    later = connection.call(ECHOES, b"later")
    with asserts.owed("20 acknowledgements, or the end of the connection"):
        connection.wait(lambda: connection.closed or len(acknowledged(connection)) >= 20, "20 acknowledgements")
        connection.answer(later)
    if connection.closed or connection.received.goaways():
        given = [(error_name(f.error_code), f.additional_data) for f in connection.received.goaways()]
        asserts.equal("GOAWAY", [("ENHANCE_YOUR_CALM", b"too_many_pings")], given[-1:])
    else:
        echoes(connection, later, b"later")
