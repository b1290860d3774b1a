"""A strict check of requests before grpcio, and faulty ones made from it.

grpcio serves much that is no gRPC request. A fault that is planted there would be hidden by grpcio's own deviation: so
it is planted in this layer, which is known to conform without the fault.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence

from hpack import Decoder, Encoder

from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind, frame
from tests.faults.frame_proxy import Fields, FrameFault, Passing

Refusal = Callable[[int], bytes]
"""From a stream to the frames that refuse its request."""
PSEUDO_FIELDS = (b":method", b":scheme", b":path", b":authority")
END = Flag.END_HEADERS | Flag.END_STREAM


def malformed(stream: int) -> bytes:
    """A stream error."""
    return frame(Kind.RST_STREAM, 0, stream, struct.pack(">I", ErrorCode.PROTOCOL_ERROR))


def answering(status: int, **fields: str) -> Refusal:
    """An answer of one header block, which leaves the compression state as it is (RFC 7541, section 6.2.2)."""
    pairs = [(":status", str(status)), *((name.replace("_", "-"), value) for name, value in fields.items())]
    literals = [bytes([0, len(name), *name.encode(), len(value), *value.encode()]) for name, value in pairs]
    return lambda stream: frame(Kind.HEADERS, END, stream, b"".join(literals))


class StrictRequests(FrameFault):
    """Refuses what is no gRPC request. Override what is faulty. Header blocks must come whole, without padding."""

    def __init__(self) -> None:
        self._decoder = Decoder(1 << 20)
        self._encoder = Encoder()
        self._refused: set[int] = set()
        self._lacking: dict[int, int] = {}
        """What a stream's DATA lacks of its content-length."""
        self.send_to_client: Callable[[bytes], None] = lambda octets: None
        self.close: Callable[[], None] = lambda: None

    # What faulty layers override.

    def refusal(self, fields: Fields) -> Refusal | None:
        """How a request with these fields is refused, if it is."""
        values = dict(fields)
        if not self.well_formed(fields):
            return malformed
        if values[b":method"] != b"POST":
            return answering(405)
        return self.type_refusal(values.get(b"content-type", b""))

    def well_formed(self, fields: Fields) -> bool:
        """Whether the pseudo-fields and ``te`` are legal, and the path begins with a slash."""
        values = dict(fields)
        return (
            self.pseudo_fields_fit([name for name, _ in fields])
            and self.te_fits(values.get(b"te"))
            and values[b":path"][:1] == b"/"
        )

    def pseudo_fields_fit(self, names: Sequence[bytes]) -> bool:
        pseudo = [name for name in names if name[:1] == b":"]
        known = sorted(pseudo) in (sorted(PSEUDO_FIELDS), sorted(PSEUDO_FIELDS[:3]))
        return known and list(names[: len(pseudo)]) == pseudo

    def te_fits(self, value: bytes | None) -> bool:
        return value == b"trailers"

    def type_refusal(self, value: bytes) -> Refusal | None:
        fits = value == b"application/grpc" or value[:17] in (b"application/grpc+", b"application/grpc;")
        return None if fits else answering(415)

    def declared(self, fields: Fields) -> int | None:
        """The octets of DATA that a request must have."""
        value = dict(fields).get(b"content-length")
        return None if value is None else int(value)

    def passed_on(self, fields: Fields) -> Fields:
        """The fields of a good request as grpcio gets them."""
        return fields

    def refuse(self, stream: int, refusal: Refusal) -> None:
        """Refuse the request of a stream."""
        self._refused.add(stream)
        self.send_to_client(refusal(stream))

    # The layer.

    def connected(self, send_to_client: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self.send_to_client, self.close = send_to_client, close

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [] if passing.stream in self._refused else [passing]

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.stream in self._refused and passing.kind != Kind.HEADERS:
            return []
        if passing.kind == Kind.DATA and passing.stream in self._lacking:
            return self._counted(passing)
        return [passing] if passing.kind != Kind.HEADERS else self._headers(passing)

    def _headers(self, passing: Passing) -> Sequence[Passing]:
        assert passing.flags & Flag.END_HEADERS, passing
        assert not passing.flags & (Flag.PADDED | Flag.PRIORITY), passing
        decoded = self._decoder.decode(passing.payload, raw=True)
        fields = tuple((bytes(name), bytes(value)) for name, value in decoded)
        refusal = self.refusal(fields)
        if refusal is not None:
            self.refuse(passing.stream, refusal)
            return []
        declared = self.declared(fields)
        if declared is not None:
            self._lacking[passing.stream] = declared
        return [passing.but(payload=self._encoder.encode(list(self.passed_on(fields))))]

    def _counted(self, passing: Passing) -> Sequence[Passing]:
        self._lacking[passing.stream] -= len(passing.payload)
        lacking = self._lacking[passing.stream]
        if lacking >= 0 and not (passing.ends_stream and lacking):
            return [passing]
        self.refuse(passing.stream, malformed)
        return [Passing(Kind.RST_STREAM, 0, passing.stream, struct.pack(">I", ErrorCode.CANCEL))]
