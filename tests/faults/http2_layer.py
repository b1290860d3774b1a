"""Faulty HTTP/2 layers that several modules of planted faults use."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence

from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind, Setting, frame, settings_payload
from tests.faults.frame_proxy import FrameFault, Passing

RESERVED = 0x80000000
LARGEST = (1 << 31) - 1
LONGEST_OF_GRPCIO = 4 << 20
"""The MAX_FRAME_SIZE that grpcio announces."""


class Closing(FrameFault):
    """Can end the connection as for a connection error."""

    def connected(self, send_to_client: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self.send_to_client = send_to_client
        self.close = close

    def end(self, code: ErrorCode = ErrorCode.PROTOCOL_ERROR) -> Sequence[Passing]:
        """Send GOAWAY with the code and close; nothing goes on."""
        self.send_to_client(frame(Kind.GOAWAY, payload=struct.pack(">II", 0, code)))
        self.close()
        return []


class Judging(Closing):
    """Finds the frames of the client that are connection errors; ``illegal`` says what becomes of them."""

    def __init__(self) -> None:
        self._block: int | None = None
        self._opened: set[int] = set()
        self._ended: set[int] = set()
        self._windows: dict[int, int] = {}
        self._initial = 65_535

    def illegal(self, passing: Passing) -> Sequence[Passing]:
        raise NotImplementedError

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if self._is_illegal(passing):
            return self.illegal(passing)
        if passing.kind == Kind.HEADERS:
            self._opened.add(passing.stream)
        if passing.kind in (Kind.HEADERS, Kind.CONTINUATION):
            self._block = None if passing.flags & Flag.END_HEADERS else passing.stream
        if passing.ends_stream:
            self._ended.add(passing.stream)
        return [passing]

    def _is_illegal(self, passing: Passing) -> bool:
        inside = passing.kind == Kind.CONTINUATION
        if inside != (self._block is not None) or (inside and passing.stream != self._block):
            return True
        if len(passing.payload) > LONGEST_OF_GRPCIO:
            return True
        match passing.kind:
            case Kind.DATA:
                return passing.stream not in self._opened or passing.stream in self._ended
            case Kind.HEADERS:
                return passing.stream % 2 == 0 or passing.stream < max(self._opened, default=0)
            case Kind.RST_STREAM:
                return passing.stream not in self._opened
            case Kind.PRIORITY:
                return passing.stream == 0
            case Kind.SETTINGS:
                return self._bad_settings(passing)
            case Kind.PUSH_PROMISE:
                return True
            case Kind.PING:
                return passing.stream != 0 or len(passing.payload) != 8
            case Kind.GOAWAY:
                return passing.stream != 0
            case Kind.WINDOW_UPDATE:
                return self._bad_window(passing)
        return False

    def _bad_settings(self, passing: Passing) -> bool:
        if passing.stream or len(passing.payload) % 6 or (passing.flags & Flag.ACK and passing.payload):
            return True
        values = settings_of(passing)
        largest = max((65_535, *self._windows.values())) - self._initial
        self._initial = values.get(Setting.INITIAL_WINDOW_SIZE, self._initial)
        return (
            self._initial > LARGEST
            or self._initial + largest > LARGEST
            or not 1 << 14 <= values.get(Setting.MAX_FRAME_SIZE, 1 << 14) < 1 << 24
            or values.get(Setting.ENABLE_PUSH, 0) > 1
        )

    def _bad_window(self, passing: Passing) -> bool:
        if passing.stream and passing.stream not in self._opened:
            return True
        increment = int.from_bytes(passing.payload, "big")
        total = self._windows.get(passing.stream, 65_535) + increment
        if not increment or total > LARGEST:
            return True
        self._windows[passing.stream] = total
        return False


class Lenient(Judging):
    """Passes over what is a connection error, as if it had not come."""

    def illegal(self, passing: Passing) -> Sequence[Passing]:
        return []


class WrongCode(Judging):
    """Ends the connection for every connection error alike: with INTERNAL_ERROR."""

    def illegal(self, passing: Passing) -> Sequence[Passing]:
        return self.end(ErrorCode.INTERNAL_ERROR)


def settings_of(passing: Passing) -> dict[int, int]:
    """The values in a SETTINGS frame."""
    return dict(struct.iter_unpack(">HI", passing.payload))


def with_settings(passing: Passing, values: Mapping[int, int]) -> Passing:
    """A SETTINGS frame with other values."""
    return passing.but(payload=settings_payload(values))
