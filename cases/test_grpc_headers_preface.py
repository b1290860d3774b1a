"""The connection preface: what does not begin with it is no HTTP/2, and nobody else pays for it."""

from __future__ import annotations

import contextlib
import socket
import ssl
import time

import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, path
from pytest_grpc_conformance.wire.connection import WireSilence, open_socket
from pytest_grpc_conformance.wire.frames import PREFACE

ECHOES = path("Echo")
HALF = PREFACE[:10]


def tls_hello() -> bytes:
    """What a TLS client sends first."""
    outgoing = ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="localhost")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return outgoing.read()


OTHER_BYTES = {
    "http1": f"GET {ECHOES} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode(),
    "tls": tls_hello(),
    "zeros": bytes(64),
    "http2_cut": PREFACE[:-6] + b"XX\r\n\r\n" + bytes(9),
}


def read_to_the_end(connection: socket.socket, timeout: float) -> None:
    """Read until the server has closed the connection. Raises ``WireSilence``."""
    until = time.monotonic() + timeout
    try:
        while True:
            connection.settimeout(max(0.001, until - time.monotonic()))
            if not connection.recv(65_536):
                return
    except TimeoutError as silence:
        raise WireSilence(f"{timeout:g} s passed without the end of the connection") from silence
    except OSError:
        return  # Reset, which is an end too.


@requirement("GRPC-HDR-17")
@pytest.mark.parametrize("octets", OTHER_BYTES.values(), ids=OTHER_BYTES.keys())
def test_no_preface_ends_the_connection(grpc_library: LibraryTarget, octets: bytes) -> None:
    """The server MUST close a connection that begins with no HTTP/2 preface, and serve others on."""
    server = grpc_library.serve({"Echo": ECHO})
    earlier = server.connect()
    asserts.still_serves(earlier, ECHOES)
    with open_socket(server.address, grpc_library.timeout) as connection:
        connection.sendall(octets)
        with asserts.owed("the end of the connection"):
            read_to_the_end(connection, grpc_library.timeout)
    asserts.still_serves(earlier, ECHOES)
    asserts.still_serves(server.connect(), ECHOES)


@requirement("GRPC-HDR-18")
@pytest.mark.parametrize("octets", [b"", HALF], ids=["nothing", "half"])
def test_half_prefaces_hold_nobody_up(grpc_library: LibraryTarget, octets: bytes) -> None:
    """The server SHOULD serve others while many connections have sent no more than half a preface."""
    server = grpc_library.serve({"Echo": ECHO})
    with contextlib.ExitStack() as held:
        for _ in range(64):
            connection = held.enter_context(open_socket(server.address, grpc_library.timeout))
            connection.sendall(octets)
        asserts.still_serves(server.connect(), ECHOES)


@requirement("GRPC-HDR-18")
@pytest.mark.nightly
def test_half_preface_is_dropped(grpc_library: LibraryTarget) -> None:
    """The server SHOULD drop a connection whose preface stops half-way, after a bounded time."""
    # Libraries that know the option are as quick as it says; by default grpcio, as others, waits for two minutes.
    server = grpc_library.serve({"Echo": ECHO}, options=[("grpc.server_handshake_timeout_ms", 1000)])
    with open_socket(server.address, grpc_library.timeout) as connection:
        connection.sendall(HALF)
        with asserts.owed("the end of the connection"):
            read_to_the_end(connection, 13 * grpc_library.timeout)
    asserts.still_serves(server.connect(), ECHOES)
