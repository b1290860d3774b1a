"""Faults of HTTP/2: header blocks."""

from __future__ import annotations

from collections.abc import Sequence

from hpack import Decoder
from hpack.exceptions import HPACKError

from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind, Setting
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.http2_layer import Closing, Lenient, WrongCode, settings_of
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class EmptyPieceIsAnError(Closing):
    """A fragment of a header block may not be empty."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        empty = passing.kind in (Kind.HEADERS, Kind.CONTINUATION) and not passing.payload
        return self.end() if empty else [passing]


class FewContinuations(Closing):
    """At most five CONTINUATION frames, however short."""

    def __init__(self) -> None:
        self._count = 0

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        self._count = self._count + 1 if passing.kind == Kind.CONTINUATION else 0
        return self.end(ErrorCode.ENHANCE_YOUR_CALM) if self._count > 5 else [passing]


class EmptyContinuationsAreFree(FrameFault):
    """Empty CONTINUATION frames are read and forgotten, however many there are."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        empty = passing.kind == Kind.CONTINUATION and not passing.payload and not passing.flags & Flag.END_HEADERS
        return [] if empty else [passing]


class UndecodableIsPassedOver(FrameFault):
    """A header block that does not decode is as if it had not come."""

    def __init__(self) -> None:
        self._decoder = Decoder()

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind == Kind.HEADERS:
            try:
                self._decoder.decode(passing.payload, raw=True)
            except HPACKError:
                return []
        return [passing]


class TableSizeUpdateIsAnError(Closing):
    def from_client(self, passing: Passing) -> Sequence[Passing]:
        update = passing.kind == Kind.HEADERS and passing.payload[0] >> 5 == 1
        return self.end(ErrorCode.COMPRESSION_ERROR) if update else [passing]


class ClientTableSizeIsIgnored(FrameFault):
    """The server's blocks use a dynamic table of 4,096 octets, whatever the client allows: the proxy's own does."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [passing]


class LongTrailersAreHeldBack(FrameFault):
    """Trailers that are longer than the client advises never go out."""

    def __init__(self) -> None:
        self._most = 1 << 31

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind == Kind.SETTINGS:
            self._most = settings_of(passing).get(Setting.MAX_HEADER_LIST_SIZE, self._most)
        return [passing]

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        size = sum(len(name) + len(value) + 32 for name, value in passing.fields or ())
        return [] if size > self._most else [passing]


empty_piece_is_an_error = Mutant(library=FaultyLibrary(frames=EmptyPieceIsAnError))
few_continuations = Mutant(library=FaultyLibrary(frames=FewContinuations))
empty_continuations_are_free = Mutant(library=FaultyLibrary(frames=EmptyContinuationsAreFree))
errors_of_blocks_are_passed_over = Mutant(library=FaultyLibrary(frames=Lenient))
every_block_error_is_internal = Mutant(library=FaultyLibrary(frames=WrongCode))
undecodable_is_passed_over = Mutant(library=FaultyLibrary(frames=UndecodableIsPassedOver))
table_size_update_is_an_error = Mutant(library=FaultyLibrary(frames=TableSizeUpdateIsAnError))
client_table_size_is_ignored = Mutant(library=FaultyLibrary(frames=ClientTableSizeIsIgnored))
long_trailers_are_held_back = Mutant(library=FaultyLibrary(frames=LongTrailersAreHeldBack))

FAULTS = (
    Fault(
        "empty_piece_is_an_error",
        caught_by={
            "grpc_http2_blocks/block_is_split_at_any_byte": "GRPC-H2-12",
            "grpc_http2_blocks/empty_block_pieces_change_nothing": "GRPC-H2-12",
        },
        protocols=WIRE,
    ),
    Fault("few_continuations", caught_by={"grpc_http2_blocks/twenty_continuations_work": "GRPC-H2-13"}, protocols=WIRE),
    Fault(
        "empty_continuations_are_free",
        caught_by={"grpc_http2_blocks/run_of_continuations_is_cut_off": "GRPC-H2-14"},
        protocols=WIRE,
    ),
    Fault(
        "errors_of_blocks_are_passed_over",
        caught_by={
            "grpc_http2_blocks/frame_inside_a_header_block_ends_the_connection": "GRPC-H2-15",
            "grpc_http2_blocks/stray_continuation_ends_the_connection": "GRPC-H2-15",
        },
        protocols=WIRE,
    ),
    Fault(
        "every_block_error_is_internal",
        caught_by={
            "grpc_http2_blocks/frame_inside_a_header_block_ends_the_connection": "GRPC-H2-15",
            "grpc_http2_blocks/stray_continuation_ends_the_connection": "GRPC-H2-15",
        },
        protocols=WIRE,
    ),
    Fault(
        "undecodable_is_passed_over",
        caught_by={
            "grpc_http2_blocks/undecodable_block_ends_the_connection": "GRPC-H2-22",
            "grpc_http2_blocks/bad_huffman_code_ends_the_connection": "GRPC-H2-22",
            "grpc_http2_blocks/table_size_above_the_limit_ends_the_connection": "GRPC-H2-22",
        },
        protocols=WIRE,
    ),
    Fault(
        "table_size_update_is_an_error",
        caught_by={
            "grpc_http2_blocks/requests_without_dynamic_table_work": "GRPC-H2-23",
            "grpc_http2_blocks/table_size_updates_in_requests_work": "GRPC-H2-23",
        },
        protocols=WIRE,
    ),
    Fault(
        "client_table_size_is_ignored",
        caught_by={"grpc_http2_blocks/responses_without_dynamic_table_work": "GRPC-H2-23"},
        protocols=WIRE,
    ),
    Fault(
        "long_trailers_are_held_back",
        caught_by={"grpc_http2_blocks/small_header_list_size_does_not_hold_the_call": "GRPC-H2-31"},
        protocols=WIRE,
    ),
)
