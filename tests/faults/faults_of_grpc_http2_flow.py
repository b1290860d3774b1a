"""Faults of HTTP/2: flow control."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from pytest_grpc_conformance.wire.frames import DEFAULT_WINDOW, ErrorCode, Kind, Setting
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.http2_layer import LARGEST, Closing, Lenient, settings_of, with_settings
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class StreamWindowsOneTooLarge(FrameFault):
    """The server sends one octet more than the initial window of a stream allows."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        values = settings_of(passing) if passing.kind == Kind.SETTINGS else {}
        if Setting.INITIAL_WINDOW_SIZE not in values:
            return [passing]
        values[Setting.INITIAL_WINDOW_SIZE] += 1
        return [with_settings(passing, values)]


class ConnectionWindowOneTooLarge(FrameFault):
    """Each WINDOW_UPDATE of the connection counts one octet too many."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.WINDOW_UPDATE or passing.stream:
            return [passing]
        return [passing.but(payload=struct.pack(">I", int.from_bytes(passing.payload, "big") + 1))]


class InitialWindowNeverChanges(FrameFault):
    """A later INITIAL_WINDOW_SIZE is acknowledged and counts for nothing when ``counts`` says so."""

    def __init__(self) -> None:
        self._first = 0

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        values = settings_of(passing) if passing.kind == Kind.SETTINGS else {}
        size = values.get(Setting.INITIAL_WINDOW_SIZE)
        if size is None or self.counts(size):
            return [passing]
        self._first = self._first or size
        return [with_settings(passing, {**values, Setting.INITIAL_WINDOW_SIZE: self._first})]

    def counts(self, size: int) -> bool:
        return False


class WindowsNeverNegative(InitialWindowNeverChanges):
    """A narrower initial window does not narrow the windows of open streams."""

    def counts(self, size: int) -> bool:
        return size > self._first > 0


class LargestWindowIsAnError(Closing):
    """A window of 2^31-1 is taken for an overflow."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        increment = int.from_bytes(passing.payload, "big") if passing.kind == Kind.WINDOW_UPDATE else 0
        return self.end(ErrorCode.FLOW_CONTROL_ERROR) if increment >= LARGEST - DEFAULT_WINDOW else [passing]


class ConnectionWindowIsNotGivenBack(FrameFault):
    """The connection's window for requests stays at its first 65,535 octets."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [] if passing.kind == Kind.WINDOW_UPDATE and not passing.stream else [passing]


stream_windows_one_too_large = Mutant(library=FaultyLibrary(frames=StreamWindowsOneTooLarge))
connection_window_one_too_large = Mutant(library=FaultyLibrary(frames=ConnectionWindowOneTooLarge))
initial_window_never_changes = Mutant(library=FaultyLibrary(frames=InitialWindowNeverChanges))
windows_never_negative = Mutant(library=FaultyLibrary(frames=WindowsNeverNegative))
errors_of_windows_are_passed_over = Mutant(library=FaultyLibrary(frames=Lenient))
"""Windows past the largest are passed over by grpcio as well; a WINDOW_UPDATE of 0 is not."""
largest_window_is_an_error = Mutant(library=FaultyLibrary(frames=LargestWindowIsAnError))
connection_window_is_not_given_back = Mutant(library=FaultyLibrary(frames=ConnectionWindowIsNotGivenBack))

FAULTS = (
    Fault(
        "stream_windows_one_too_large",
        caught_by={
            "grpc_http2_flow/stream_window_binds": "GRPC-H2-24",
            "grpc_http2_flow/larger_initial_window_opens_streams": "GRPC-H2-25",
            "grpc_http2_flow/smaller_initial_window_makes_windows_negative": "GRPC-H2-25",
        },
        protocols=WIRE,
    ),
    Fault(
        "connection_window_one_too_large",
        caught_by={"grpc_http2_flow/connection_window_binds": "GRPC-H2-24"},
        protocols=WIRE,
    ),
    Fault(
        "initial_window_never_changes",
        caught_by={"grpc_http2_flow/larger_initial_window_opens_streams": "GRPC-H2-25"},
        protocols=WIRE,
    ),
    Fault(
        "windows_never_negative",
        caught_by={"grpc_http2_flow/smaller_initial_window_makes_windows_negative": "GRPC-H2-25"},
        protocols=WIRE,
    ),
    Fault(
        "errors_of_windows_are_passed_over",
        caught_by={
            "grpc_http2_flow/window_update_of_zero_is_an_error": "GRPC-H2-20",
            "grpc_http2_flow/window_past_the_largest_is_an_error": "GRPC-H2-20",
        },
        protocols=WIRE,
    ),
    Fault(
        "largest_window_is_an_error",
        caught_by={"grpc_http2_flow/largest_windows_are_accepted": "GRPC-H2-20"},
        protocols=WIRE,
    ),
    Fault(
        "connection_window_is_not_given_back",
        caught_by={
            "grpc_http2_flow/large_upload_completes": "GRPC-H2-26",
            "grpc_http2_flow/large_upload_of_a_stock_client_completes": "GRPC-H2-26",
            "grpc_http2_flow/unread_upload_stalls_no_other_stream": "GRPC-H2-26",
        },
        protocols=WIRE,
    ),
)
