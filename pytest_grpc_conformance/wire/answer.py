"""What came back on one stream, with nothing hidden: header blocks, messages with their flags, and how it ended."""

from __future__ import annotations

import struct
import urllib.parse
from dataclasses import dataclass

from pytest_grpc_conformance.wire.frames import error_name

Field = tuple[bytes, bytes]


@dataclass(frozen=True, slots=True)
class Block:
    """One decoded header block (HEADERS with its CONTINUATION frames)."""

    fields: tuple[Field, ...]
    end_stream: bool

    def values(self, name: str) -> list[bytes]:
        """All values of a field, in order."""
        return [value for key, value in self.fields if key == name.encode()]

    def first(self, name: str) -> bytes | None:
        """The first value of a field, ``None`` without one."""
        return next(iter(self.values(name)), None)


@dataclass(frozen=True, slots=True)
class WireMessage:
    """One length-prefixed message: the compressed-flag octet and the payload as sent."""

    flag: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class Answer:
    """Everything that a server has sent on a stream so far."""

    stream: int
    blocks: tuple[Block, ...] = ()
    data: bytes = b""
    data_ended: bool = False
    """END_STREAM came on a DATA frame."""
    reset: int | None = None
    """The error code of the server's RST_STREAM."""
    closed: str = ""
    """How the connection ended, if that is what ended the stream."""

    @property
    def headers(self) -> Block | None:
        """The response headers, ``None`` for a trailers-only answer or none at all."""
        if not self.blocks or (len(self.blocks) == 1 and self.blocks[0].end_stream):
            return None
        return self.blocks[0]

    @property
    def trailers(self) -> Block | None:
        """The last block, if it ended the stream."""
        return self.blocks[-1] if self.blocks and self.blocks[-1].end_stream else None

    @property
    def trailers_only(self) -> bool:
        return len(self.blocks) == 1 and self.blocks[0].end_stream

    @property
    def ended(self) -> bool:
        """The server has ended its side, in whatever way."""
        return self.trailers is not None or self.data_ended or self.reset is not None or bool(self.closed)

    @property
    def http_status(self) -> str | None:
        """``:status`` of the first block."""
        value = self.blocks[0].first(":status") if self.blocks else None
        return None if value is None else value.decode("latin-1")

    @property
    def status(self) -> int | None:
        """``grpc-status`` of the trailers as a number; ``None`` if there is none or it is no number."""
        value = self.trailers.first("grpc-status") if self.trailers else None
        return int(value) if value is not None and value.isdigit() else None

    @property
    def details(self) -> str:
        """``grpc-message`` of the trailers, percent-decoded; ``''`` without one."""
        value = self.trailers.first("grpc-message") if self.trailers else None
        return "" if value is None else urllib.parse.unquote_to_bytes(value).decode("utf-8", "replace")

    @property
    def messages(self) -> tuple[WireMessage, ...]:
        """The complete messages in the data."""
        return self._split()[0]

    @property
    def remainder(self) -> bytes:
        """What follows the last complete message."""
        return self._split()[1]

    @property
    def payloads(self) -> tuple[bytes, ...]:
        """The payloads of the complete messages."""
        return tuple(message.payload for message in self.messages)

    def _split(self) -> tuple[tuple[WireMessage, ...], bytes]:
        found: list[WireMessage] = []
        at = 0
        while len(self.data) - at >= 5:
            flag, length = struct.unpack_from(">BI", self.data, at)
            if len(self.data) - at - 5 < length:
                break
            found.append(WireMessage(flag, self.data[at + 5 : at + 5 + length]))
            at += 5 + length
        return tuple(found), self.data[at:]

    def __str__(self) -> str:
        words = [f":status {self.http_status}"] if self.blocks else []
        words.append(f"{len(self.messages)} messages")
        if self.remainder:
            words.append(f"{len(self.remainder)} octets of an incomplete one")
        if self.trailers is not None:
            words.append("trailers-only" if self.trailers_only else "trailers")
            words.append(f"grpc-status {self.status} {self.details!r}")
        if self.data_ended:
            words.append("END_STREAM on DATA")
        if self.reset is not None:
            words.append(f"RST_STREAM {error_name(self.reset)}")
        if self.closed:
            words.append(self.closed)
        if not self.ended:
            words.append("still open")
        return ", ".join(words)
