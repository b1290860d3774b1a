"""Faults of keepalive, of connections that end by themselves, and of what a server does with its options."""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Callable, Sequence
from typing import Any

from pytest_grpc_conformance.servers.base import ServerSetup
from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind, frame
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.request_fault import thrown_as
from tests.faults.table import WIRE, Fault

KNOWN = ("grpc.so_reuseport", "grpc.keepalive_", "grpc.max_", "grpc.http2.")


class PingsUnsent(FrameFault):
    """The server waits for answers to PINGs that it never sends."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [] if passing.kind == Kind.PING and not passing.flags & Flag.ACK else [passing]


class GoawayUnsent(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [] if passing.kind == Kind.GOAWAY else [passing]


class ThreePingsAreAbuse(FrameFault):
    """Counts the client's PINGs, whatever lies between them."""

    def __init__(self) -> None:
        self._pings = 0
        self._send_to_client: Callable[[bytes], None] = lambda octets: None
        self._close: Callable[[], None] = lambda: None

    def connected(self, send_to_client: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self._send_to_client, self._close = send_to_client, close

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        self._pings += passing.kind == Kind.PING and not passing.flags & Flag.ACK
        if self._pings == 3:
            goaway = struct.pack(">II", 0, ErrorCode.ENHANCE_YOUR_CALM) + b"too_many_pings"
            self._send_to_client(frame(Kind.GOAWAY, payload=goaway))
            self._close()
        return [passing]


def adding(*options: tuple[str, Any]) -> Mutant:
    """A server with further options."""
    return Mutant(
        library=FaultyLibrary(
            setup=lambda setup: dataclasses.replace(setup, options=[*(setup.options or ()), *options])
        )
    )


def refusing(wrong: Callable[[Any], bool], error: type[Exception]) -> Mutant:
    """A server that raises an error where its options are wrong."""

    def checked(setup: ServerSetup) -> ServerSetup:
        if wrong(setup.options):
            raise error("wrong options")
        return setup

    return Mutant(library=FaultyLibrary(setup=checked))


pings_unsent = Mutant(library=FaultyLibrary(frames=PingsUnsent))
goaway_unsent = Mutant(library=FaultyLibrary(frames=GoawayUnsent))
three_pings_are_abuse = Mutant(library=FaultyLibrary(frames=ThreePingsAreAbuse))
pings_without_calls = adding(("grpc.keepalive_permit_without_calls", 1))
pings_by_default = adding(("grpc.keepalive_time_ms", 500), ("grpc.keepalive_permit_without_calls", 1))
lost_client_is_an_error = Mutant(library=FaultyLibrary(handler=thrown_as(lambda end: ConnectionError("gone"))))
"""Handlers get an error of the transport in place of CancelledError."""
unknown_option_refused = refusing(
    lambda options: any(not name.startswith(KNOWN) for name, _ in options or ()), ValueError
)
other_type_refused = refusing(lambda options: any(not isinstance(value, int) for _, value in options or ()), TypeError)
lists_only = refusing(lambda options: not isinstance(options, list), TypeError)


def _fault(mutant: str, nightly: bool = False, **rows: str) -> Fault:
    caught_by = {f"grpc_{function.replace('__', '/')}": f"GRPC-KA-{row}" for function, row in rows.items()}
    return Fault(mutant, caught_by=caught_by, protocols=WIRE, nightly=nightly)


FAULTS = (
    _fault(
        "pings_unsent",
        keepalive__pings_on_a_connection_with_a_call="01",
        keepalive__permitted_pings_without_calls="02",
        keepalive__unanswered_ping_ends_the_connection="03",
    ),
    _fault("pings_without_calls", keepalive__no_pings_without_calls="02"),
    _fault("lost_client_is_an_error", keepalive__unanswered_ping_ends_calls="04"),
    _fault(
        "goaway_unsent",
        keepalive__close_is_announced="05",
        keepalive_options__old_connection_ends="06",
        keepalive_options__idle_connection_ends="06",
    ),
    _fault(
        "three_pings_are_abuse",
        keepalive__spaced_pings_are_no_abuse="10",
        keepalive__pings_between_calls_are_no_abuse="10",
    ),
    _fault("pings_by_default", nightly=True, keepalive__no_pings_by_default="11"),
    _fault("unknown_option_refused", keepalive_options__other_options_are_ignored="07"),
    _fault("other_type_refused", keepalive_options__option_of_another_type="08"),
    _fault("lists_only", keepalive_options__options_in_any_form="09", keepalive_options__options_may_be_none="09"),
)
