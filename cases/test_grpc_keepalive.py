"""Keepalive: the server's PINGs, what follows when they are not answered, and the client's PINGs."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any

import pytest
from hyperframe.frame import PingFrame

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, Served, path, unary
from pytest_grpc_conformance.wire.connection import RawConnection, WireSilence

ECHOES = path("Echo")
PERIOD = 0.1
NO_PROBES = ("grpc.http2.bdp_probe", 0)
"""grpcio also measures the bandwidth by PINGs, which cannot be told from others."""
KEEPALIVE = (NO_PROBES, ("grpc.keepalive_time_ms", int(PERIOD * 1000)))
ANSWER_SOON = (("grpc.keepalive_timeout_ms", 100), ("grpc.http2.ping_timeout_ms", 100))
"""grpcio 1.85 waits for as long as the second one says."""
UNASKED = (("grpc.keepalive_permit_without_calls", 1),)


def serve(target: LibraryTarget, *options: tuple[str, Any]) -> Served:
    """A server with keepalive, an echo, and a method whose calls stay open and note how they end."""

    async def stays(request: bytes, context: Any) -> bytes:
        target.seen.note("runs")
        try:
            await asyncio.Event().wait()
        except BaseException as end:
            target.seen.note("ended by", type(end))
            raise
        return b""

    return target.serve({"Echo": ECHO, "Stays": unary(stays)}, options=[*KEEPALIVE, *options])


def open_call(target: LibraryTarget, connection: RawConnection) -> int:
    """A call that runs in its handler; its stream."""
    before = len(target.seen.values("runs"))
    stream = connection.call(path("Stays"))
    asserts.seen(target, "runs", count=before + 1)
    return stream


def pings(connection: RawConnection) -> int:
    """How many PINGs of its own the server has sent."""
    return sum(isinstance(frame, PingFrame) and "ACK" not in frame.flags for frame in connection.received.frames)


def wait_pings(connection: RawConnection, count: int) -> None:
    """Wait for the server's PINGs. Raises ``WireSilence``."""
    connection.wait(lambda: pings(connection) >= count, f"PING {count} of the server", connection.timeout + PERIOD)


@requirement("GRPC-KA-01")
def test_pings_on_a_connection_with_a_call(grpc_library: LibraryTarget) -> None:
    """The server MUST send PINGs by `grpc.keepalive_time_ms` on a connection with an open stream."""

    def exchange(target: LibraryTarget) -> str:
        connection = serve(target).connect()
        open_call(target, connection)
        wait_pings(connection, 2)
        return "PING"

    asserts.parity(grpc_library, exchange, expected="PING")


@requirement("GRPC-KA-02")
def test_no_pings_without_calls(grpc_library: LibraryTarget) -> None:
    """The server MUST NOT send keepalive PINGs on a connection without calls, unless it is permitted."""

    def exchange(target: LibraryTarget) -> int:
        server = serve(target)
        idle, finished, busy = server.connect(), server.connect(), server.connect()
        idle.fence()
        asserts.still_serves(finished, ECHOES)
        open_call(target, busy)
        wait_pings(busy, 3)
        idle.fence()
        finished.fence()
        return pings(idle) + pings(finished)

    asserts.parity(grpc_library, exchange, expected=0)


@requirement("GRPC-KA-02")
def test_permitted_pings_without_calls(grpc_library: LibraryTarget) -> None:
    """The server MUST send PINGs without calls where `grpc.keepalive_permit_without_calls` is 1."""

    def exchange(target: LibraryTarget) -> str:
        wait_pings(serve(target, *UNASKED).connect(), 1)
        return "PING"

    asserts.parity(grpc_library, exchange, expected="PING")


@requirement("GRPC-KA-03")
def test_unanswered_ping_ends_the_connection(grpc_library: LibraryTarget) -> None:
    """The server MUST close a connection whose client does not answer PINGs."""

    def exchange(target: LibraryTarget) -> str:
        connection = serve(target, *ANSWER_SOON).connect(acknowledges=False)
        open_call(target, connection)
        connection.wait_closed(target.timeout + 2 * PERIOD)
        return "closed after PING" if pings(connection) else "closed"

    asserts.parity(grpc_library, exchange, expected="closed after PING")


@requirement("GRPC-KA-04")
def test_unanswered_ping_ends_calls(grpc_library: LibraryTarget) -> None:
    """The server MUST cancel the calls of a connection whose client does not answer PINGs."""
    connection = serve(grpc_library, *ANSWER_SOON).connect(acknowledges=False)
    open_call(grpc_library, connection)
    with asserts.owed("CancelledError in the handler"):
        ends = grpc_library.seen.wait("ended by", grpc_library.timeout + 2 * PERIOD)
    asserts.equal("what the handler gets", [asyncio.CancelledError], ends)


@requirement("GRPC-KA-05")
def test_close_is_announced(grpc_library: LibraryTarget) -> None:
    """The server SHOULD send GOAWAY before it closes a connection for lack of a PING's answer."""
    connection = serve(grpc_library, *ANSWER_SOON).connect(acknowledges=False)
    open_call(grpc_library, connection)
    with asserts.owed("the end of the connection"):
        ending = connection.wait_closed(grpc_library.timeout + 2 * PERIOD)
    asserts.true("GOAWAY comes before the end", bool(connection.received.goaways()), ending)


@requirement("GRPC-KA-10")
def test_spaced_pings_are_no_abuse(grpc_library: LibraryTarget) -> None:
    """The server SHOULD NOT send GOAWAY for client PINGs that are as far apart as it permits."""

    def exchange(target: LibraryTarget) -> int:
        permitted = ("grpc.http2.min_ping_interval_without_data_ms", 20)
        connection = serve(target, permitted).connect()
        open_call(target, connection)
        for _ in range(6):
            connection.fence()
            # The next PING leaves 30 ms after the server has answered this one, hence comes 30 ms after it or later.
            with contextlib.suppress(WireSilence):
                connection.wait(lambda: False, "the next PING", 0.03)
        asserts.still_serves(connection, ECHOES)
        return len(connection.received.goaways())

    asserts.parity(grpc_library, exchange, expected=0)


@requirement("GRPC-KA-10")
def test_pings_between_calls_are_no_abuse(grpc_library: LibraryTarget) -> None:
    """The server SHOULD NOT send GOAWAY for client PINGs with a response between each two."""

    def exchange(target: LibraryTarget) -> int:
        connection = target.serve({"Echo": ECHO}, options=[NO_PROBES]).connect()
        for _ in range(20):
            asserts.still_serves(connection, ECHOES)
            connection.fence()
        asserts.still_serves(connection, ECHOES)
        return len(connection.received.goaways())

    asserts.parity(grpc_library, exchange, expected=0)


@requirement("GRPC-KA-11")
@pytest.mark.nightly
def test_no_pings_by_default(grpc_library: LibraryTarget) -> None:
    """The server SHOULD NOT send PINGs on an idle connection within 8 s, by default."""

    def exchange(target: LibraryTarget) -> str:
        connection = target.serve({"Echo": ECHO}).connect()
        connection.fence()
        with contextlib.suppress(WireSilence):
            connection.wait(lambda: pings(connection) or connection.closed, "PING or the end", 8.0)
        return "PING" if pings(connection) else connection.closed or "nothing"

    asserts.parity(grpc_library, exchange, expected="nothing")
