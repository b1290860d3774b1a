"""Faults of HTTP/2: streams, their number, and how a connection ends."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Sequence

from pytest_grpc_conformance.servers.base import ServerSetup
from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind, Setting
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.http2_layer import Closing, Lenient, settings_of, with_settings
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class LateFramesAreErrors(Closing):
    """WINDOW_UPDATE and RST_STREAM on a stream that has just closed end the connection."""

    def __init__(self) -> None:
        self._ended: set[int] = set()

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.ends_stream:
            self._ended.add(passing.stream)
        return [passing]

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        late = passing.kind in (Kind.WINDOW_UPDATE, Kind.RST_STREAM) and passing.stream in self._ended
        return self.end(ErrorCode.STREAM_CLOSED) if late else [passing]


class Pushes(FrameFault):
    """Trailers are preceded by a promise."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        promise = Passing(
            Kind.PUSH_PROMISE, Flag.END_HEADERS, passing.stream, struct.pack(">I", 2) + bytes([0x82, 0x86, 0x84])
        )
        return [promise, passing] if passing.is_trailers else [passing]


class LimitNotAnnounced(FrameFault):
    """The limit of concurrent streams is enforced and kept secret."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.SETTINGS:
            return [passing]
        values = settings_of(passing)
        values.pop(Setting.MAX_CONCURRENT_STREAMS, None)
        return [with_settings(passing, values)]


class EarlyEndCancels(FrameFault):
    """The stream is reset with CANCEL after early trailers, which clients take for a failed call."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [passing.but(payload=struct.pack(">I", 8))] if passing.kind == Kind.RST_STREAM else [passing]


class DataAfterResetIsAnError(Closing):
    """DATA on a stream that the server has reset ends the connection."""

    def __init__(self) -> None:
        self._reset: set[int] = set()

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind == Kind.RST_STREAM:
            self._reset.add(passing.stream)
        return [passing]

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        late = passing.kind == Kind.DATA and passing.stream in self._reset
        return self.end(ErrorCode.STREAM_CLOSED) if late else [passing]


class StopIsAnError(FrameFault):
    """The GOAWAY of a graceful stop carries an error."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.GOAWAY:
            return [passing]
        return [passing.but(payload=passing.payload[:4] + struct.pack(">I", ErrorCode.INTERNAL_ERROR))]


class LastStreamIsNought(FrameFault):
    """GOAWAY disowns the streams that run."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [passing.but(payload=bytes(4) + passing.payload[4:])] if passing.kind == Kind.GOAWAY else [passing]


def limited(most: int) -> FaultyLibrary:
    """A library with a limit of concurrent streams that nobody asked for, in place of any other."""

    def change(setup: ServerSetup) -> ServerSetup:
        kept = [option for option in setup.options if option[0] != "grpc.max_concurrent_streams"]
        return dataclasses.replace(setup, options=[*kept, ("grpc.max_concurrent_streams", most)])

    return FaultyLibrary(setup=change)


errors_of_streams_are_passed_over = Mutant(library=FaultyLibrary(frames=Lenient))
"""grpcio passes over the same errors, so that its own deviation and this fault look alike."""
late_frames_are_errors = Mutant(library=FaultyLibrary(frames=LateFramesAreErrors))
server_pushes = Mutant(library=FaultyLibrary(frames=Pushes))
limit_not_announced = Mutant(library=FaultyLibrary(frames=LimitNotAnnounced))
limit_of_a_thousand = Mutant(library=limited(1_000))
limit_of_a_hundred = Mutant(library=limited(100))
early_end_cancels = Mutant(library=FaultyLibrary(frames=EarlyEndCancels))
data_after_reset_is_an_error = Mutant(library=FaultyLibrary(frames=DataAfterResetIsAnError))
stop_is_an_error = Mutant(library=FaultyLibrary(frames=StopIsAnError))
last_stream_is_nought = Mutant(library=FaultyLibrary(frames=LastStreamIsNought))

FAULTS = (
    Fault(
        "errors_of_streams_are_passed_over",
        caught_by={
            "grpc_http2_streams/frame_on_the_wrong_stream_ends_the_connection": "GRPC-H2-16",
            "grpc_http2_streams/frame_on_an_idle_stream_ends_the_connection": "GRPC-H2-17",
            "grpc_http2_streams/unexpected_stream_identifier_ends_the_connection": "GRPC-H2-17",
            "grpc_http2_streams/data_after_end_stream_is_refused": "GRPC-H2-18",
            "grpc_http2_streams/push_promise_ends_the_connection": "GRPC-H2-19",
        },
        protocols=WIRE,
    ),
    Fault(
        "late_frames_are_errors",
        caught_by={"grpc_http2_streams/late_frames_on_a_closed_stream_are_ignored": "GRPC-H2-18"},
        protocols=WIRE,
    ),
    Fault("server_pushes", caught_by={"grpc_http2_streams/server_never_pushes": "GRPC-H2-19"}, protocols=WIRE),
    Fault(
        "limit_of_a_thousand",
        caught_by={"grpc_http2_streams/streams_beyond_the_limit_are_refused": "GRPC-H2-27"},
        protocols=WIRE,
    ),
    Fault(
        "limit_not_announced",
        caught_by={
            "grpc_http2_streams/streams_beyond_the_limit_are_refused": "GRPC-H2-27",
            "grpc_http2_streams/stock_client_waits_for_a_free_stream": "GRPC-H2-28",
        },
        protocols=WIRE,
    ),
    Fault(
        "limit_of_a_hundred",
        caught_by={"grpc_http2_streams/thousand_streams_on_a_connection": "GRPC-H2-29"},
        protocols=WIRE,
    ),
    Fault(
        "early_end_cancels", caught_by={"grpc_http2_streams/early_end_resets_the_stream": "GRPC-H2-30"}, protocols=WIRE
    ),
    Fault(
        "data_after_reset_is_an_error",
        caught_by={"grpc_http2_streams/data_after_an_early_end_does_no_harm": "GRPC-H2-30"},
        protocols=WIRE,
    ),
    Fault("stop_is_an_error", caught_by={"grpc_http2_streams/stop_sends_goaway_at_once": "GRPC-H2-32"}, protocols=WIRE),
    Fault(
        "last_stream_is_nought",
        caught_by={"grpc_http2_streams/streams_above_the_last_one_are_not_processed": "GRPC-H2-33"},
        protocols=WIRE,
    ),
)
