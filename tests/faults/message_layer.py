"""A strict message layer before grpcio, and faulty ones made from it.

grpcio lets pass, or leaves hanging, much of what the gRPC protocol forbids. A fault that is planted there would be
hidden by grpcio's own deviation: so it is planted in this layer, which is known to conform without the fault.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from hpack import Decoder

from pytest_grpc_conformance.wire.frames import DEFAULT_MAX_FRAME, ErrorCode, Flag, Kind, frame, message
from tests.faults.frame_proxy import FrameFault, Passing

REQUEST_STREAMS = ("ClientStream", "Bidi")
"""Names of the methods whose requests may be many."""
KNOWN = ("identity", "deflate", "gzip")
UNIMPLEMENTED = 12
INTERNAL = 13


class Refused(Exception):
    """A request is refused: with a status, and further fields."""

    def __init__(self, status: int, **fields: str) -> None:
        super().__init__(status)
        self.status = status
        self.fields = {name.replace("_", "-"): value for name, value in fields.items()}


@dataclass
class Request:
    """The request of one stream, as far as it has come."""

    stream: int
    method: str
    encoding: str
    prefix: bytes = b""
    """Octets of a length prefix that is not complete."""
    body: int = 0
    """Octets that the body of the message under way lacks."""
    messages: int = 0
    over: bool = False
    """Refused: nothing goes on any more, in either direction."""
    held: bytes = b""
    """For layers that hold octets back."""

    @property
    def is_stream(self) -> bool:
        return self.method in REQUEST_STREAMS


class MessageLayer(FrameFault):
    """Takes padding off, and refuses what is no sequence of messages. Override what is faulty."""

    def __init__(self) -> None:
        self.requests: dict[int, Request] = {}
        self._decoder = Decoder(1 << 24)
        self._block = b""
        self._block_ends_stream = False
        self.send_to_client: Callable[[bytes], None] = lambda octets: None
        self.close: Callable[[], None] = lambda: None

    # What faulty layers override.

    def content(self, request: Request, passing: Passing) -> bytes:
        """The content of a DATA frame, without padding, which is credited back."""
        if not passing.flags & Flag.PADDED:
            return passing.payload
        padding = passing.payload[0]
        if padding >= len(passing.payload):
            self.connection_error(ErrorCode.PROTOCOL_ERROR)
            return b""
        self.credit(request, padding + 1)
        return passing.payload[1 : len(passing.payload) - padding]

    def credit(self, request: Request, octets: int) -> None:
        """Give back window for octets that go no further."""
        for stream in (0, request.stream):
            self.send_to_client(frame(Kind.WINDOW_UPDATE, 0, stream, struct.pack(">I", octets)))

    def begins(self, request: Request) -> None:
        """The headers of a request have come."""
        if request.encoding not in KNOWN:
            raise Refused(UNIMPLEMENTED, grpc_accept_encoding=", ".join(KNOWN))

    def message_begins(self, request: Request, flag: int, length: int) -> bytes:
        """A length prefix is complete; what goes on in its place."""
        if flag > 1:
            raise Refused(INTERNAL)
        request.messages += 1
        if request.messages > 1 and not request.is_stream:
            raise Refused(UNIMPLEMENTED)
        return message(b"", flag=flag, length=length)

    def truncated(self, request: Request) -> bytes:
        """The request has ended inside a message; what goes on before its end."""
        raise Refused(INTERNAL)

    def without_message(self, request: Request) -> bytes:
        """The request has ended without a message, where there must be one; what goes on before its end."""
        raise Refused(UNIMPLEMENTED)

    # The layer.

    def connected(self, send_to_client: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self.send_to_client, self.close = send_to_client, close

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        request = self.requests.get(passing.stream)
        return [] if request is not None and request.over else [passing]

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind in (Kind.HEADERS, Kind.CONTINUATION):
            return self._header_frame(passing)
        request = self.requests.get(passing.stream)
        if passing.kind != Kind.DATA or request is None:
            return [passing]
        if request.over:
            return []
        try:
            octets = self._messages(request, self.content(request, passing))
            if passing.ends_stream:
                octets += self._end(request)
        except Refused as refused:
            return self.refuse(request, refused)
        return data_frames(passing.stream, octets, end_stream=passing.ends_stream)

    def refuse(self, request: Request, refused: Refused) -> Sequence[Passing]:
        """End a stream towards the client by trailers, towards the server by RST_STREAM."""
        request.over = True
        fields = {"content-type": "application/grpc", "grpc-status": str(refused.status), **refused.fields}
        flags = Flag.END_HEADERS | Flag.END_STREAM
        self.send_to_client(frame(Kind.HEADERS, flags, request.stream, stateless_block(fields)))
        return [Passing(Kind.RST_STREAM, 0, request.stream, struct.pack(">I", ErrorCode.CANCEL))]

    def connection_error(self, code: ErrorCode) -> None:
        self.send_to_client(frame(Kind.GOAWAY, payload=struct.pack(">II", max(self.requests, default=0), code)))
        self.close()

    def trailers(self, request: Request, passing: Passing) -> Sequence[Passing]:
        """A second header block of a request ends it."""
        octets = self._end(request)
        return [*data_frames(request.stream, octets), passing]

    def _header_frame(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind == Kind.HEADERS:
            self._block, self._block_ends_stream = b"", passing.ends_stream
        self._block += passing.payload
        if not passing.flags & Flag.END_HEADERS:
            return [passing]
        fields = dict(self._decoder.decode(self._block, raw=True))
        known = self.requests.get(passing.stream)
        method = fields.get(b":path", b"").decode("latin-1").rpartition("/")[2]
        encoding = fields.get(b"grpc-encoding", b"identity").decode("latin-1")
        request = known or self.requests.setdefault(passing.stream, Request(passing.stream, method, encoding))
        if request.over:
            return [passing]
        try:
            if known is not None:
                return self.trailers(request, passing)
            self.begins(request)
            if not self._block_ends_stream:
                return [passing]
            octets = self._end(request)
            if not octets:
                return [passing]
            open_block = passing.but(flags=passing.flags & ~Flag.END_STREAM)
            return [open_block, *data_frames(request.stream, octets, end_stream=True)]
        except Refused as refused:
            return [passing, *self.refuse(request, refused)]

    def _messages(self, request: Request, content: bytes) -> bytes:
        out = b""
        while content:
            if request.body:
                part, content = content[: request.body], content[request.body :]
                request.body -= len(part)
                out += part
                continue
            lacking = 5 - len(request.prefix)
            request.prefix, content = request.prefix + content[:lacking], content[lacking:]
            if len(request.prefix) == 5:
                flag, length = struct.unpack(">BI", request.prefix)
                request.prefix, request.body = b"", length
                out += self.message_begins(request, flag, length)
        return out

    def _end(self, request: Request) -> bytes:
        if request.prefix or request.body:
            return self.truncated(request)
        if not request.messages and not request.is_stream:
            return self.without_message(request)
        return b""


class Collected(MessageLayer):
    """A layer that holds the messages of a request until it ends, and may change each. Override ``changed``."""

    def changed(self, request: Request, flag: int, payload: bytes) -> bytes:
        """A message; its octets as they go on."""
        return message(payload, flag=flag)

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        request = self.requests.get(passing.stream)
        if passing.kind != Kind.DATA or request is None:
            return super().from_client(passing)
        request.held += passing.payload
        self.credit(request, len(passing.payload))
        if not passing.ends_stream:
            return []
        out, held = b"", request.held
        while held:
            flag, length = struct.unpack_from(">BI", held)
            out += self.changed(request, flag, held[5 : 5 + length])
            held = held[5 + length :]
        return data_frames(passing.stream, out, end_stream=True)


def stateless_block(fields: Mapping[str, str]) -> bytes:
    """A header block with ``:status`` 200 that leaves the compression state as it is (RFC 7541, section 6.2.2)."""
    literals = [bytes([0, len(name), *name.encode(), len(value), *value.encode()]) for name, value in fields.items()]
    return b"\x88" + b"".join(literals)


def data_frames(stream: int, octets: bytes, *, end_stream: bool = False) -> list[Passing]:
    """Octets as DATA frames; without octets, the end alone."""
    parts = [octets[at : at + DEFAULT_MAX_FRAME] for at in range(0, len(octets), DEFAULT_MAX_FRAME)]
    if not parts and end_stream:
        parts = [b""]
    last = len(parts) - 1
    end = Flag.END_STREAM if end_stream else Flag.NONE
    return [Passing(Kind.DATA, end if at == last else 0, stream, part) for at, part in enumerate(parts)]
