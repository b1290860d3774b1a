"""Ports of a server, and its end: stop with and without a grace."""

from __future__ import annotations

import asyncio
import concurrent.futures
import socket
from collections.abc import Callable
from typing import Any

import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.servers.base import BindFailed
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, Served, path, unary


class _Held:
    """A server with calls whose handlers wait for ``release``."""

    def __init__(self, target: LibraryTarget, calls: int = 1) -> None:
        self._target = target
        self._release = asyncio.Event()
        self.served: Served = target.serve({"Waits": unary(self._waits)})
        channel: Any = self.served.channel()
        method = channel.unary_unary(path("Waits"))
        # A deadline that cannot end the call before the wait for the stop has given up.
        self.calls: list[Any] = [method.future(b"held", timeout=target.timeout * 20) for _ in range(calls)]
        target.seen.wait("started", target.timeout, count=calls)

    async def _waits(self, request: bytes, context: Any) -> bytes:
        self._target.seen.note("started")
        try:
            await self._release.wait()
        except asyncio.CancelledError:
            self._target.seen.note("cancelled")
            raise
        finally:
            self._target.seen.note("finally")
        return request

    def release(self) -> None:
        async def released() -> None:
            self._release.set()

        self._target.run(released())

    def codes(self) -> list[str]:
        return sorted({call.code().name for call in self.calls})

    def returned(self, *stopping: concurrent.futures.Future[None]) -> bool:
        return not concurrent.futures.wait(stopping, self._target.timeout).not_done


def _stopped(*graces: float | None) -> Callable[[LibraryTarget], Any]:
    def exchange(target: LibraryTarget) -> Any:
        held = _Held(target)
        stopping = [held.served.begin_stop(grace) for grace in graces]
        if not held.returned(*stopping):
            held.release()
            return "stop did not return"
        return held.codes()

    return exchange


@requirement("GRPC-LIFE-12")
def test_stop_without_grace(grpc_library: LibraryTarget) -> None:
    """The server MUST end its calls with UNAVAILABLE when it is stopped without a grace."""
    asserts.parity(grpc_library, _stopped(None), expected=["UNAVAILABLE"])


@requirement("GRPC-LIFE-15")
def test_grace_ends(grpc_library: LibraryTarget) -> None:
    """The server MUST end calls that still run when the grace ends with UNAVAILABLE."""
    asserts.parity(grpc_library, _stopped(0.1), expected=["UNAVAILABLE"])


@requirement("GRPC-LIFE-17")
@pytest.mark.parametrize("grace", [pytest.param(0, id="zero"), pytest.param(-1, id="negative")])
def test_no_grace_in_numbers(grpc_library: LibraryTarget, grace: float) -> None:
    """The server MUST take a grace of zero or less for an immediate stop."""
    asserts.parity(grpc_library, _stopped(grace), expected=["UNAVAILABLE"])


@requirement("GRPC-LIFE-26")
def test_handler_cancelled(grpc_library: LibraryTarget) -> None:
    """The server MUST cancel the handlers in flight at stop, so that they run their finally."""

    def exchange(target: LibraryTarget) -> Any:
        held = _Held(target)
        try:
            held.served.begin_stop(None)
            return len(target.seen.wait("cancelled", target.timeout)), len(target.seen.wait("finally", target.timeout))
        finally:
            held.release()

    asserts.parity(grpc_library, exchange, expected=(1, 1))


@requirement("GRPC-LIFE-25")
def test_wait_for_termination(grpc_library: LibraryTarget) -> None:
    """The server MUST return True from wait_for_termination on timeout, and False once stopped."""

    def exchange(target: LibraryTarget) -> Any:
        served = target.serve({"Echo": ECHO})

        async def waits(timeout: float) -> Any:
            return await served.native.wait_for_termination(timeout)

        async def cancelled() -> bool:
            waiter = asyncio.ensure_future(waits(600))
            await asyncio.sleep(0)
            waiter.cancel()
            await asyncio.wait([waiter])
            return waiter.cancelled()

        before = target.run(waits(0.05)), target.run(cancelled()), served.call("Echo", b"on").code
        concurrent.futures.wait([served.begin_stop(None)], target.timeout)
        return *before, target.run(waits(0.05))

    asserts.parity(grpc_library, exchange, expected=(True, True, "OK", False))


@requirement("GRPC-LIFE-01")
def test_bound_port(grpc_library: LibraryTarget) -> None:
    """The server MUST return the free port that it bound for port 0."""

    def exchange(target: LibraryTarget) -> Any:
        served = target.serve({"Echo": ECHO})
        return served.port > 0 and served.call("Echo", b"here").code

    asserts.parity(grpc_library, exchange, expected="OK")


@requirement("GRPC-LIFE-02")
def test_second_port(grpc_library: LibraryTarget) -> None:
    """The server MUST serve on both of its ports."""

    def exchange(target: LibraryTarget) -> Any:
        ports: list[int] = []
        try:
            served = target.serve({"Echo": ECHO}, register=[lambda s: ports.append(s.add_insecure_port("127.0.0.1:0"))])
        except BindFailed:
            return "the second port is refused"
        channel: Any = served.channel(address=f"127.0.0.1:{ports[0]}")
        method = channel.unary_unary(path("Echo"))
        call = method.future(b"second", timeout=target.timeout)
        return ports[0] != served.port, served.call("Echo", b"first").code, call.code().name

    asserts.parity(grpc_library, exchange, expected=(True, "OK", "OK"))


@requirement("GRPC-LIFE-06")
def test_port_taken(grpc_library: LibraryTarget) -> None:
    """The server MUST raise RuntimeError for a port that a foreign listener holds."""

    def exchange(target: LibraryTarget) -> Any:
        raised: list[str] = []

        def add(server: Any, port: int) -> None:
            try:
                server.add_insecure_port(f"127.0.0.1:{port}")
                raised.append("nothing")
            except RuntimeError:
                raised.append("RuntimeError")

        with socket.create_server(("127.0.0.1", 0)) as foreign:
            target.serve({"Echo": ECHO}, register=[lambda server: add(server, foreign.getsockname()[1])])
        return raised

    asserts.parity(grpc_library, exchange, expected=["RuntimeError"])
