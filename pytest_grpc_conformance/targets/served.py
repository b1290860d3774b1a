"""A user's own servicers on a server library, for the ``grpc_server`` fixture: no engine, no protocol."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from pytest_grpc_conformance.servers.base import RunningServer, ServerLibrary, ServerSetup, stop_and_drop
from pytest_grpc_conformance.targets.loop_thread import LoopThread
from pytest_grpc_conformance.targets.plan import registrations


class ServedServicers:
    """A running server with a user's servicers, on a loop of its own thread: sync and async tests can use it."""

    def __init__(
        self,
        library: ServerLibrary,
        servicers: Sequence[Any],
        loop: LoopThread,
        *,
        options: Sequence[tuple[str, Any]] = (),
        interceptors: Sequence[Any] = (),
        timeout: float,
    ) -> None:
        self.library = library
        self._loop = loop
        self._timeout = timeout
        self._channel: Any = None
        register = [lambda server, r=r: r.add(r.servicer, server) for r in registrations(servicers)]
        setup = ServerSetup(register, options, interceptors)
        self._server: RunningServer | None = loop.run(library.start(setup), timeout)
        self._port = self._server.port

    @property
    def native(self) -> Any:
        """The library's own server object. Raises ``RuntimeError`` once the server is stopped."""
        if self._server is None:
            raise RuntimeError("the server is stopped")
        return self._server.native

    @property
    def host(self) -> str:
        return "127.0.0.1"

    @property
    def port(self) -> int:
        return self._port

    @property
    def address(self) -> str:
        """``host:port``, as channels take it."""
        return f"{self.host}:{self.port}"

    @property
    def channel(self) -> Any:
        """A blocking ``grpc.Channel`` to the server, closed with it."""
        if self._channel is None:
            import grpc

            from pytest_grpc_conformance.protocols.client import CHANNEL_OPTIONS

            self._channel = grpc.insecure_channel(self.address, options=list(CHANNEL_OPTIONS))
        return self._channel

    def stop(self, grace: float | None = None) -> None:
        """Stop the server with ``grace`` seconds for running calls, and wait until it has stopped.

        A server that is stopped stays so; another call does nothing.
        """
        if self._server is not None:
            held, self._server = [self._server], None
            self._loop.run(stop_and_drop(held, grace), self._timeout + (grace or 0))

    async def stop_async(self, grace: float | None = None) -> None:
        """The same for a test that runs on a loop of its own."""
        if self._server is not None:
            held, self._server = [self._server], None
            stopping = asyncio.run_coroutine_threadsafe(stop_and_drop(held, grace), self._loop.loop)
            await asyncio.wrap_future(stopping)

    def __enter__(self) -> ServedServicers:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._channel is not None:
            self._channel.close()
        self.stop(None)
