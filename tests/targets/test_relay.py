"""The relay before a server: what goes through it, and what its cut looks like from both sides."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

import pytest

from pytest_grpc_conformance.targets.loop_thread import LoopThread
from pytest_grpc_conformance.targets.relay import Relay


class Upstream:
    """A listener that hands over its connections."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.listener.settimeout(10)
        self.port: int = self.listener.getsockname()[1]

    def accept(self) -> socket.socket:
        connection, _ = self.listener.accept()
        connection.settimeout(10)
        return connection


@pytest.fixture
def upstream() -> Iterator[Upstream]:
    upstream = Upstream()
    with upstream.listener:
        yield upstream


@pytest.fixture
def relay(loop: LoopThread, upstream: Upstream) -> Iterator[Relay]:
    relay = loop.run(Relay("127.0.0.1", upstream.port).start(), 5)
    yield relay
    loop.run(relay.close(), 5)
    assert not relay._pumps
    assert not relay._writers


def connect(relay: Relay) -> socket.socket:
    return socket.create_connection(("127.0.0.1", relay.port), 10)


def read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        data += (part := connection.recv(65536))
        assert part, "closed too early"
    return data


def test_bytes_pass_both_ways_in_order_and_unchanged(relay: Relay, upstream: Upstream) -> None:
    with connect(relay) as client, upstream.accept() as server:
        payload = bytes(range(256)) * 4096
        sender = threading.Thread(target=client.sendall, args=(payload,))
        sender.start()
        assert read(server, len(payload)) == payload
        sender.join(10)
        server.sendall(payload)
        assert read(client, len(payload)) == payload


@pytest.mark.parametrize("closes", ["client", "server"])
def test_an_orderly_end_is_passed_on(relay: Relay, upstream: Upstream, closes: str) -> None:
    client, server = connect(relay), upstream.accept()
    with client, server:
        first, other = (client, server) if closes == "client" else (server, client)
        first.shutdown(socket.SHUT_WR)
        assert other.recv(1) == b""


def test_cut_resets_both_sides_without_an_orderly_end(relay: Relay, upstream: Upstream, loop: LoopThread) -> None:
    with connect(relay) as client, upstream.accept() as server:
        client.sendall(b"x")
        assert server.recv(1) == b"x"
        loop.run(relay.cut(), 5)
        for side in (client, server):
            with pytest.raises(ConnectionResetError):
                side.recv(1)


def test_new_connections_work_after_a_cut_and_none_after_close(
    relay: Relay, upstream: Upstream, loop: LoopThread
) -> None:
    with connect(relay), upstream.accept():
        loop.run(relay.cut(), 5)
    with connect(relay) as client, upstream.accept() as server:
        client.sendall(b"again")
        assert read(server, 5) == b"again"
    loop.run(relay.close(), 5)
    with pytest.raises(ConnectionRefusedError):
        connect(relay)


def test_client_is_reset_when_nobody_listens_behind_the_relay(relay: Relay, upstream: Upstream) -> None:
    upstream.listener.close()
    with connect(relay) as client, contextlib.suppress(ConnectionResetError):
        assert client.recv(1) == b""


def test_connections_that_have_ended_are_forgotten(relay: Relay, upstream: Upstream, loop: LoopThread) -> None:
    import asyncio

    for _ in range(20):
        with connect(relay) as client, upstream.accept() as server:
            client.sendall(b"x")
            assert server.recv(1) == b"x"

    async def all_ended() -> None:
        while relay._pumps or relay._writers:
            await asyncio.sleep(0.01)

    loop.run(all_ended(), 10)


def test_relay_listens_on_the_loopback_only(relay: Relay) -> None:
    addresses = [one.getsockname()[0] for one in relay._server.sockets]
    assert addresses == ["127.0.0.1"]
