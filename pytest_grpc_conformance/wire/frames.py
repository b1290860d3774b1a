"""HTTP/2 frames as octets and in words (RFC 9113, section 4 and 6). Nothing here checks that a frame is legal."""

from __future__ import annotations

import enum
import struct
from collections.abc import Mapping

from hyperframe.frame import (
    DataFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    PingFrame,
    RstStreamFrame,
    SettingsFrame,
    WindowUpdateFrame,
)

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DEFAULT_WINDOW = 65_535
DEFAULT_MAX_FRAME = 16_384
HEADER_OCTETS = 9


class Kind(enum.IntEnum):
    """Frame types (section 6)."""

    DATA = 0
    HEADERS = 1
    PRIORITY = 2
    RST_STREAM = 3
    SETTINGS = 4
    PUSH_PROMISE = 5
    PING = 6
    GOAWAY = 7
    WINDOW_UPDATE = 8
    CONTINUATION = 9


class Flag(enum.IntFlag):
    """Frame flags; ACK and END_STREAM are the same bit of different frames."""

    NONE = 0
    END_STREAM = 0x1
    ACK = 0x1
    END_HEADERS = 0x4
    PADDED = 0x8
    PRIORITY = 0x20


class Setting(enum.IntEnum):
    """Identifiers of settings (section 6.5.2)."""

    HEADER_TABLE_SIZE = 1
    ENABLE_PUSH = 2
    MAX_CONCURRENT_STREAMS = 3
    INITIAL_WINDOW_SIZE = 4
    MAX_FRAME_SIZE = 5
    MAX_HEADER_LIST_SIZE = 6


class ErrorCode(enum.IntEnum):
    """Error codes of RST_STREAM and GOAWAY (section 7)."""

    NO_ERROR = 0
    PROTOCOL_ERROR = 1
    INTERNAL_ERROR = 2
    FLOW_CONTROL_ERROR = 3
    SETTINGS_TIMEOUT = 4
    STREAM_CLOSED = 5
    FRAME_SIZE_ERROR = 6
    REFUSED_STREAM = 7
    CANCEL = 8
    COMPRESSION_ERROR = 9
    CONNECT_ERROR = 10
    ENHANCE_YOUR_CALM = 11
    INADEQUATE_SECURITY = 12
    HTTP_1_1_REQUIRED = 13


def error_name(code: int) -> str:
    """The name of an error code, or its number."""
    return ErrorCode(code).name if code in ErrorCode.__members__.values() else f"error {code}"


def frame(kind: int, flags: int = 0, stream: int = 0, payload: bytes = b"", *, length: int | None = None) -> bytes:
    """One frame. ``length`` replaces the true length of the payload, and bit 31 of ``stream`` is the reserved bit."""
    size = len(payload) if length is None else length
    return struct.pack(">BHBBI", size >> 16, size & 0xFFFF, kind, flags, stream) + payload


def settings_payload(values: Mapping[int, int]) -> bytes:
    """The payload of a SETTINGS frame."""
    return b"".join(struct.pack(">HI", identifier, value) for identifier, value in values.items())


def padded(payload: bytes, padding: int) -> bytes:
    """A payload for a frame with the PADDED flag: ``padding`` octets of zero after it."""
    return bytes([padding]) + payload + bytes(padding)


def message(payload: bytes, *, flag: int = 0, length: int | None = None) -> bytes:
    """A length-prefixed gRPC message (gRPC over HTTP/2, "Length-Prefixed-Message")."""
    return struct.pack(">BI", flag, len(payload) if length is None else length) + payload


def describe(received: Frame) -> str:
    """A frame in a few words, for transcripts; header blocks are described by who decodes them."""
    words = [f"{type(received).__name__.removesuffix('Frame').upper()} stream {received.stream_id}"]
    match received:
        case DataFrame():
            words.append(f"{len(received.data)} octets {received.data[:16].hex(' ')}")
        case HeadersFrame():
            words.append(f"block of {len(received.data)} octets")
        case RstStreamFrame():
            words.append(error_name(received.error_code))
        case GoAwayFrame():
            words.append(
                f"{error_name(received.error_code)} last stream {received.last_stream_id} {received.additional_data!r}"
            )
        case WindowUpdateFrame():
            words.append(f"+{received.window_increment}")
        case PingFrame():
            words.append(received.opaque_data.hex())
        case SettingsFrame():
            words.append(" ".join(f"{_setting_name(key)}={value}" for key, value in received.settings.items()))
    words += sorted(str(flag) for flag in received.flags)
    return " ".join(word for word in words if word)


def _setting_name(identifier: int) -> str:
    return Setting(identifier).name if identifier in Setting.__members__.values() else f"setting {identifier}"
