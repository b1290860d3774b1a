"""Faults of HTTP/2: settings, pings, and what every frame has in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind, Setting, frame
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.http2_layer import RESERVED, Closing, Lenient, WrongCode, settings_of
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault

KNOWN_FLAGS = {Kind.DATA: 0x09, Kind.HEADERS: 0x2D, Kind.PING: 0x01}


class PingBeforeSettings(FrameFault):
    def connected(self, send_to_client: Callable[[bytes], None], close: Callable[[], None]) -> None:
        send_to_client(frame(Kind.PING, payload=bytes(8)))


class SettingsAcknowledgedTwice(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        twice = passing.kind == Kind.SETTINGS and passing.flags & Flag.ACK
        return [passing, passing] if twice else [passing]


class UnknownIsAnError(Closing):
    """Settings and frame types from extensions end the connection."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind > Kind.CONTINUATION:
            return self.end()
        if passing.kind == Kind.SETTINGS and set(settings_of(passing)) - set(Setting):
            return self.end()
        return [passing]


class LongestFrameIsAnError(Closing):
    """The range of MAX_FRAME_SIZE ends one too early."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        values = settings_of(passing) if passing.kind == Kind.SETTINGS else {}
        return self.end() if values.get(Setting.MAX_FRAME_SIZE, 0) >= (1 << 24) - 1 else [passing]


class PingsOutOfOrder(FrameFault):
    """Acknowledgements go out in pairs, the later one first."""

    def __init__(self) -> None:
        self._held: list[Passing] = []

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.PING or not passing.flags & Flag.ACK:
            return [passing]
        if not self._held:
            self._held.append(passing)
            return []
        return [passing, self._held.pop()]


class OnTheEventLoop(FrameFault):
    """Frames pass through the loop of the handlers, and wait there for a handler that blocks it."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [passing]


class AckIsAnswered(FrameFault):
    def from_client(self, passing: Passing) -> Sequence[Passing]:
        return [passing.but(flags=0)] if passing.kind == Kind.PING else [passing]


class UndefinedFlagsAreErrors(Closing):
    """On DATA and PING this is grpcio's own deviation; on HEADERS it is the planted fault alone."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        known = KNOWN_FLAGS.get(Kind(passing.kind), 0xFF)
        return self.end() if passing.flags & ~known else [passing]


class ReservedBitCounts(Closing):
    """The reserved bit is taken for a part of the identifier, which is too large then."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        return self.end() if passing.stream & RESERVED else [passing]


class PriorityIsAnError(Closing):
    def from_client(self, passing: Passing) -> Sequence[Passing]:
        return self.end() if passing.kind == Kind.PRIORITY else [passing]


class OptionalFieldsAreBlock(FrameFault):
    """Priority fields and padding of HEADERS are taken for a part of the header block (grpcio does so with padding)."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.HEADERS:
            return [passing]
        return [passing.but(flags=passing.flags & ~(Flag.PRIORITY | Flag.PADDED))]


class FloodUnnamed(FrameFault):
    """The GOAWAY for too many pings does not say so."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        calm = passing.kind == Kind.GOAWAY and passing.payload[7] == ErrorCode.ENHANCE_YOUR_CALM
        return [passing.but(payload=passing.payload[:8])] if calm else [passing]


ping_before_settings = Mutant(library=FaultyLibrary(frames=PingBeforeSettings))
settings_acknowledged_twice = Mutant(library=FaultyLibrary(frames=SettingsAcknowledgedTwice))
unknown_is_an_error = Mutant(library=FaultyLibrary(frames=UnknownIsAnError))
longest_frame_is_an_error = Mutant(library=FaultyLibrary(frames=LongestFrameIsAnError))
errors_of_frames_are_passed_over = Mutant(library=FaultyLibrary(frames=Lenient))
every_error_is_internal = Mutant(library=FaultyLibrary(frames=WrongCode))
"""grpcio names no code at all, which the same case notices of it."""
pings_out_of_order = Mutant(library=FaultyLibrary(frames=PingsOutOfOrder))
frames_on_the_event_loop = Mutant(library=FaultyLibrary(frames=OnTheEventLoop))
ping_ack_is_answered = Mutant(library=FaultyLibrary(frames=AckIsAnswered))
undefined_flags_are_errors = Mutant(library=FaultyLibrary(frames=UndefinedFlagsAreErrors))
reserved_bit_counts = Mutant(library=FaultyLibrary(frames=ReservedBitCounts))
priority_is_an_error = Mutant(library=FaultyLibrary(frames=PriorityIsAnError))
optional_fields_are_block = Mutant(library=FaultyLibrary(frames=OptionalFieldsAreBlock))
ping_flood_unnamed = Mutant(library=FaultyLibrary(frames=FloodUnnamed))

FAULTS = (
    Fault("ping_before_settings", caught_by={"grpc_http2_frames/settings_come_first": "GRPC-H2-01"}, protocols=WIRE),
    Fault(
        "settings_acknowledged_twice",
        caught_by={"grpc_http2_frames/each_settings_is_acknowledged": "GRPC-H2-01"},
        protocols=WIRE,
    ),
    Fault(
        "unknown_is_an_error",
        caught_by={
            "grpc_http2_frames/unknown_settings_are_ignored": "GRPC-H2-02",
            "grpc_http2_frames/frames_of_unknown_type_are_ignored": "GRPC-H2-10",
        },
        protocols=WIRE,
    ),
    Fault(
        "longest_frame_is_an_error",
        caught_by={"grpc_http2_frames/settings_at_their_limits_are_accepted": "GRPC-H2-04"},
        protocols=WIRE,
    ),
    Fault(
        "errors_of_frames_are_passed_over",
        caught_by={
            "grpc_http2_frames/malformed_settings_end_the_connection": "GRPC-H2-03",
            "grpc_http2_frames/setting_out_of_range_ends_the_connection": "GRPC-H2-04",
            "grpc_http2_frames/malformed_ping_ends_the_connection": "GRPC-H2-07",
            "grpc_http2_frames/frame_above_the_announced_size_is_refused": "GRPC-H2-21",
        },
        protocols=WIRE,
    ),
    Fault(
        "every_error_is_internal",
        caught_by={
            "grpc_http2_frames/goaway_names_the_connection_error": "GRPC-H2-05",
            "grpc_http2_frames/malformed_settings_end_the_connection": "GRPC-H2-03",
            "grpc_http2_frames/frame_above_the_announced_size_is_refused": "GRPC-H2-21",
        },
        protocols=WIRE,
    ),
    Fault(
        "pings_out_of_order", caught_by={"grpc_http2_frames/pings_are_answered_in_order": "GRPC-H2-06"}, protocols=WIRE
    ),
    Fault(
        "frames_on_the_event_loop",
        caught_by={"grpc_http2_frames/ping_is_answered_while_a_handler_blocks": "GRPC-H2-06"},
        protocols=WIRE,
    ),
    Fault(
        "ping_ack_is_answered",
        caught_by={"grpc_http2_frames/ping_with_ack_is_not_answered": "GRPC-H2-07"},
        protocols=WIRE,
    ),
    Fault(
        "undefined_flags_are_errors",
        caught_by={
            "grpc_http2_frames/undefined_ping_flags_are_ignored": "GRPC-H2-08",
            "grpc_http2_frames/undefined_data_flag_is_ignored": "GRPC-H2-08",
            "grpc_http2_frames/undefined_headers_flags_are_ignored": "GRPC-H2-08",
        },
        protocols=WIRE,
    ),
    Fault("reserved_bit_counts", caught_by={"grpc_http2_frames/reserved_bit_is_ignored": "GRPC-H2-09"}, protocols=WIRE),
    Fault(
        "priority_is_an_error",
        caught_by={"grpc_http2_frames/priority_frames_change_nothing": "GRPC-H2-11"},
        protocols=WIRE,
    ),
    Fault(
        "optional_fields_are_block",
        caught_by={
            "grpc_http2_frames/priority_fields_of_headers_change_nothing": "GRPC-H2-11",
            "grpc_http2_frames/padded_headers_are_accepted": "GRPC-H2-11",
        },
        protocols=WIRE,
    ),
    Fault(
        "ping_flood_unnamed",
        caught_by={"grpc_http2_frames/ping_flood_is_tolerated_or_named": "GRPC-H2-34"},
        protocols=WIRE,
    ),
)
