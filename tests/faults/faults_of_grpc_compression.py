"""Faults of compression."""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import zlib
from collections.abc import Sequence
from typing import Any

import grpc

from pytest_grpc_conformance.wire.frames import Kind, message
from tests.faults.faults_of_grpc_messages import layer, no_limits
from tests.faults.faulty_library import FaultyContext, FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.message_layer import INTERNAL, KNOWN, UNIMPLEMENTED, Collected, MessageLayer, Refused, Request
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class FlagClearedWithoutEncoding(MessageLayer):
    """Takes a flagged message without an encoding as it is."""

    def message_begins(self, request: Request, flag: int, length: int) -> bytes:
        return super().message_begins(request, 0 if request.encoding == "identity" else flag, length)


class IdentityOnly(MessageLayer):
    """Knows no compression."""

    def begins(self, request: Request) -> None:
        if request.encoding != "identity":
            raise Refused(UNIMPLEMENTED, grpc_accept_encoding="identity")


class UnknownIsInternal(MessageLayer):
    """Says INTERNAL to an encoding that it does not know."""

    def begins(self, request: Request) -> None:
        if request.encoding not in KNOWN:
            raise Refused(INTERNAL, grpc_accept_encoding=", ".join(KNOWN))


class RefusalWithoutList(MessageLayer):
    """Refuses an encoding without a word on those that it knows."""

    def begins(self, request: Request) -> None:
        if request.encoding not in KNOWN:
            raise Refused(UNIMPLEMENTED)


class RefusalWithThatName(MessageLayer):
    """Announces the very encoding that it refuses."""

    def begins(self, request: Request) -> None:
        if request.encoding not in KNOWN:
            raise Refused(UNIMPLEMENTED, grpc_accept_encoding=f"gzip,{request.encoding}")


class InternalIsUnknown(FrameFault):
    """Lets an error of its decompressor escape as UNKNOWN."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        internal = passing.is_trailers and (b"grpc-status", b"13") in (passing.fields or ())
        return [passing.with_field("grpc-status", "2") if internal else passing]


class FirstMemberOnly(Collected):
    """Stops at the end of the first gzip stream, and ignores what follows."""

    def changed(self, request: Request, flag: int, payload: bytes) -> bytes:
        return message(zlib.decompressobj(31).decompress(payload) if flag else payload)


class OneDecompressor(Collected):
    """Decompresses a whole stream with one state."""

    def __init__(self) -> None:
        super().__init__()
        self._decompressors: dict[int, Any] = {}

    def changed(self, request: Request, flag: int, payload: bytes) -> bytes:
        state = self._decompressors.setdefault(request.stream, zlib.decompressobj(31))
        return message(state.decompress(payload) if flag else payload)


class DecompressesAllFirst(Collected):
    """Decompresses a message as a whole before it looks at its size."""

    def changed(self, request: Request, flag: int, payload: bytes) -> bytes:
        self.size = len(gzip.decompress(payload)) if flag else len(payload)
        return message(payload, flag=flag)


class AnnouncesNothing(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [passing if passing.fields is None else passing.with_field("grpc-accept-encoding", None)]


class AnnouncesDeflateOnly(FrameFault):
    """Accepts more than it announces."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        headers = passing.kind == Kind.HEADERS and passing.fields is not None and not passing.ends_stream
        return [passing.with_field("grpc-accept-encoding", "identity,deflate") if headers else passing]


def decompressing_all(handler: Any, path: str) -> Any:
    """Decompresses what looks like gzip, whatever its flag."""

    def deserialized(octets: bytes) -> bytes:
        return gzip.decompress(octets) if octets.startswith(b"\x1f\x8b") else octets

    return handler._replace(request_deserializer=deserialized)


class CompressionUnheard(FaultyContext):
    """Has the methods of compression, which do nothing: grpcio then conforms where it would compress for anyone."""

    def set_compression(self, compression: grpc.Compression) -> None:
        pass

    def disable_next_message_compression(self) -> None:
        pass


class CompressesOn(FaultyContext):
    def disable_next_message_compression(self) -> None:
        pass


class NeverTooLate(FaultyContext):
    def set_compression(self, compression: grpc.Compression) -> None:
        with contextlib.suppress(RuntimeError):
            self._real.set_compression(compression)


flag_cleared_without_encoding = layer(FlagClearedWithoutEncoding)
identity_only = layer(IdentityOnly)
unknown_is_internal = layer(UnknownIsInternal)
refusal_without_list = layer(RefusalWithoutList)
refusal_with_that_name = layer(RefusalWithThatName)
internal_is_unknown = layer(InternalIsUnknown)
first_member_only = layer(FirstMemberOnly)
one_decompressor = layer(OneDecompressor)
decompresses_all_first = layer(DecompressesAllFirst)
announces_nothing = layer(AnnouncesNothing)
announces_deflate_only = layer(AnnouncesDeflateOnly)
flag_unread = Mutant(library=FaultyLibrary(handler=decompressing_all))
limit_of_compressed_size = no_limits
compression_unheard = Mutant(library=FaultyLibrary(context=CompressionUnheard))
compresses_on = Mutant(library=FaultyLibrary(context=CompressesOn))
never_too_late = Mutant(library=FaultyLibrary(context=NeverTooLate))
compression_argument_ignored = Mutant(
    library=FaultyLibrary(setup=lambda setup: dataclasses.replace(setup, arguments={}))
)
compresses_for_anyone = Mutant(library=FaultyLibrary())
"""grpcio as it is: that it compresses for clients which list no compression is its own deviation."""


def _fault(mutant: str, **rows: str) -> Fault:
    caught_by = {f"grpc_compression/{function}": f"GRPC-MSG-{row}" for function, row in rows.items()}
    return Fault(mutant, caught_by=caught_by, protocols=WIRE)


FAULTS = (
    _fault("flag_cleared_without_encoding", flag_without_encoding_is_internal="14"),
    _fault("flag_unread", gzip_is_decompressed_by_flag="15"),
    _fault(
        "identity_only",
        gzip_is_decompressed_by_flag="15",
        gzip_of_a_stock_client="15",
        deflate_of_a_stock_client="16",
    ),
    _fault("unknown_is_internal", unknown_encoding_is_unimplemented="17"),
    _fault("refusal_without_list", refusal_announces_known_encodings="17"),
    _fault("refusal_with_that_name", refusal_announces_known_encodings="17"),
    _fault("internal_is_unknown", flag_without_encoding_is_internal="14", broken_gzip_is_internal="18"),
    _fault("first_member_only", octets_after_the_gzip_stream_fail="19", second_gzip_member_is_not_dropped="19"),
    _fault("announces_nothing", accepted_encodings_are_announced="20", encoding_of_the_request_is_announced="21"),
    _fault("announces_deflate_only", accepted_encodings_are_announced="20", encoding_of_the_request_is_announced="21"),
    _fault("limit_of_compressed_size", limit_is_of_the_decompressed_size="22"),
    _fault("decompresses_all_first", decompression_stops_at_the_limit="22"),
    _fault("one_decompressor", each_message_decompresses_alone="27"),
    _fault("compression_unheard", set_compression_compresses="28"),
    _fault("compresses_on", disabling_is_for_the_next_message="29"),
    _fault("never_too_late", set_compression_after_headers_raises="30"),
    _fault("compression_argument_ignored", compression_of_the_server="31"),
    _fault("compresses_for_anyone", no_encoding_that_the_client_lacks="32"),
)
