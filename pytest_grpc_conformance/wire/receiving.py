"""From the octets that a server sends to frames, header blocks and streams. The server is taken for hostile.

Memory is bounded: by the longest frame that was allowed, the longest header block, and the octets of one connection.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hpack import Decoder
from hpack.exceptions import HPACKError
from hyperframe.exceptions import HyperframeError
from hyperframe.frame import (
    ContinuationFrame,
    DataFrame,
    ExtensionFrame,
    Frame,
    GoAwayFrame,
    HeadersFrame,
    RstStreamFrame,
    SettingsFrame,
)

from pytest_grpc_conformance.wire.answer import Answer, Block
from pytest_grpc_conformance.wire.frames import DEFAULT_MAX_FRAME, HEADER_OCTETS, describe

LONGEST_BLOCK = 1 << 20
"""Octets of one header block, encoded or decoded."""
MOST_OCTETS = 256 << 20
"""Octets of one connection."""
MOST_FRAMES = 500_000


class Misframed(Exception):
    """What came is no HTTP/2, or more of it than this client takes; the message says what it was."""


@dataclass(slots=True)
class _Stream:
    blocks: list[Block] = field(default_factory=list)
    data: bytearray = field(default_factory=bytearray)
    data_ended: bool = False
    reset: int | None = None


@dataclass(slots=True)
class _OpenBlock:
    """A header block whose END_HEADERS has yet to come."""

    stream: int
    encoded: bytearray
    end_stream: bool


class Receiver:
    """Everything that came on one connection, in order."""

    def __init__(self, *, max_frame: int = DEFAULT_MAX_FRAME, table_size: int = 4096) -> None:
        self.frames: list[Frame] = []
        """Every frame, in order; a DATA frame's ``data`` is without its padding."""
        self.notes: dict[int, str] = {}
        """Decoded header blocks in words, by the position of their last frame."""
        self._max_frame = max_frame
        self._decoder = Decoder(LONGEST_BLOCK)
        self._decoder.max_allowed_table_size = table_size
        self._decoder.header_table_size = table_size
        self._buffer = bytearray()
        self._octets = 0
        self._streams: dict[int, _Stream] = {}
        self._block: _OpenBlock | None = None

    def feed(self, octets: bytes) -> list[Frame]:
        """Take octets; the frames that are complete now. Raises ``Misframed``."""
        self._octets += len(octets)
        if self._octets > MOST_OCTETS:
            raise Misframed(f"more than {MOST_OCTETS >> 20} MiB on one connection")
        self._buffer += octets
        complete: list[Frame] = []
        at = 0
        while (size := self._next_size(at)) is not None:
            complete.append(self._take(bytes(self._buffer[at : at + size])))
            at += size
        del self._buffer[:at]
        return complete

    @property
    def unfinished(self) -> bytes:
        """The octets after the last complete frame."""
        return bytes(self._buffer)

    def answer(self, stream: int, *, closed: str = "") -> Answer:
        """What came on a stream so far; ``closed`` is how the connection has ended, if it has."""
        known = self._streams.get(stream, _Stream())
        over = known.reset is not None or known.data_ended or any(block.end_stream for block in known.blocks)
        return Answer(
            stream, tuple(known.blocks), bytes(known.data), known.data_ended, known.reset, "" if over else closed
        )

    def ended(self, stream: int) -> bool:
        """Whether the server has ended its side of a stream."""
        known = self._streams.get(stream)
        return known is not None and (
            known.reset is not None or known.data_ended or any(block.end_stream for block in known.blocks)
        )

    def size(self, stream: int) -> int:
        """Octets of DATA on a stream, padding left out."""
        known = self._streams.get(stream)
        return 0 if known is None else len(known.data)

    def goaways(self) -> list[GoAwayFrame]:
        """Every GOAWAY frame."""
        return [frame for frame in self.frames if isinstance(frame, GoAwayFrame)]

    def settings(self) -> dict[int, int]:
        """The settings in force, as the server announced them."""
        merged: dict[int, int] = {}
        for frame in self.frames:
            if isinstance(frame, SettingsFrame):
                merged.update(frame.settings)
        return merged

    def on_stream(self, stream: int) -> list[Frame]:
        """The frames of one stream."""
        return [frame for frame in self.frames if frame.stream_id == stream]

    def describe(self, position: int) -> str:
        """The frame at a position, a header block with its decoded fields."""
        return self.notes.get(position) or describe(self.frames[position])

    # Parsing.

    def _next_size(self, at: int) -> int | None:
        if len(self._buffer) - at < HEADER_OCTETS:
            return None
        length = int.from_bytes(self._buffer[at : at + 3], "big")
        if length > self._max_frame:
            start = bytes(self._buffer[at : at + 16])
            raise Misframed(f"a frame of {length} octets where {self._max_frame} are allowed; it begins {start!r}")
        size = HEADER_OCTETS + length
        return size if len(self._buffer) - at >= size else None

    def _take(self, octets: bytes) -> Frame:
        try:
            frame, _ = Frame.parse_frame_header(memoryview(octets[:HEADER_OCTETS]))
            frame.parse_body(memoryview(octets[HEADER_OCTETS:]))
        except HyperframeError as error:
            raise Misframed(f"{type(error).__name__} {error} in {octets[:24]!r}") from error
        if len(self.frames) >= MOST_FRAMES:
            raise Misframed(f"more than {MOST_FRAMES} frames on one connection")
        self._check_block_order(frame)
        self.frames.append(frame)
        match frame:
            case DataFrame():
                known = self._stream(frame.stream_id)
                known.data += frame.data
                known.data_ended = known.data_ended or "END_STREAM" in frame.flags
            case HeadersFrame():
                self._block = _OpenBlock(frame.stream_id, bytearray(frame.data), "END_STREAM" in frame.flags)
                self._close_block(frame)
            case ContinuationFrame():
                assert self._block is not None
                self._block.encoded += frame.data
                self._close_block(frame)
            case RstStreamFrame():
                self._stream(frame.stream_id).reset = frame.error_code
        return frame

    def _stream(self, stream: int) -> _Stream:
        return self._streams.setdefault(stream, _Stream())

    def _check_block_order(self, frame: Frame) -> None:
        inside = self._block is not None
        fits = isinstance(frame, ContinuationFrame) == inside and (
            self._block is None or frame.stream_id == self._block.stream
        )
        if not fits:
            where = "inside a header block" if inside else "outside of any header block"
            kind = frame.type if isinstance(frame, ExtensionFrame) else type(frame).__name__
            raise Misframed(f"{kind} on stream {frame.stream_id} {where}")

    def _close_block(self, frame: Frame) -> None:
        block = self._block
        assert block is not None
        if len(block.encoded) > LONGEST_BLOCK:
            raise Misframed(f"a header block of more than {LONGEST_BLOCK} octets")
        if "END_HEADERS" not in frame.flags:
            return
        self._block = None
        try:
            fields = self._decoder.decode(bytes(block.encoded), raw=True)
        except HPACKError as error:
            raise Misframed(f"a header block that does not decode: {error!r}") from error
        decoded = tuple((bytes(name), bytes(value)) for name, value in fields)
        self._stream(block.stream).blocks.append(Block(decoded, block.end_stream))
        words = " ".join(f"{name.decode('latin-1')}={value!r}"[:200] for name, value in decoded[:50])
        end = " END_STREAM" if block.end_stream else ""
        self.notes[len(self.frames) - 1] = f"HEADERS stream {block.stream} {words}{end}"
