"""A target in this process: a server library, servicers and a gated engine, made for one case."""

from __future__ import annotations

import concurrent.futures
from typing import TypeVar

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.base import Registration, WireProtocol
from pytest_grpc_conformance.servers.base import RunningServer, ServerLibrary, ServerSetup, stop_and_drop
from pytest_grpc_conformance.targets.base import Capability, NotApplicable, Target
from pytest_grpc_conformance.targets.loop_thread import LoopThread
from pytest_grpc_conformance.targets.plan import TargetPlan, registrations
from pytest_grpc_conformance.targets.relay import Relay

T = TypeVar("T")
SERVER_OPTIONS = (
    ("grpc.max_receive_message_length", 64 * 1024 * 1024),
    ("grpc.max_send_message_length", 64 * 1024 * 1024),
)


class InprocessTarget(Target):
    """A server library with servicers on a gated engine. ``start`` it; ``close`` takes everything down."""

    def __init__(
        self,
        library: ServerLibrary,
        protocol: WireProtocol,
        loop: LoopThread,
        *,
        timeout: float,
        plan: TargetPlan | None = None,
    ) -> None:
        super().__init__()
        plan = plan or TargetPlan(reference=True)
        self.library = plan.library or library
        self.name = library.name
        self.protocol = protocol
        self.timeout = timeout
        reference = {Capability.REFERENCE} if plan.reference else set()
        self.capabilities = frozenset({Capability.SCRIPTED, Capability.LIFECYCLE} | reference)
        self._plan = plan
        self._loop = loop
        self._engine = (plan.engine or GatedEngine)(timeout=timeout)
        self._server: RunningServer | None = None
        self._made: tuple[Registration, ...] = ()
        self._relays: list[Relay] = []
        self._port = 0

    @property
    def engine(self) -> GatedEngine:
        return self._engine

    @property
    def model(self) -> str:
        return self._engine.model

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def server(self) -> RunningServer:
        """The running server. Raises ``RuntimeError`` while it is stopped."""
        if self._server is None:
            raise RuntimeError("the server is not running")
        return self._server

    def start(self) -> InprocessTarget:
        """Start the server: the first time on a free port, later on the port that it had. Raises ``BindFailed``."""
        make = self._plan.servicers or self.protocol.servicers
        self._made = registrations(make(self._engine))
        register = [lambda server, r=r: r.add(r.servicer, server) for r in self._made]
        setup = ServerSetup(register, options=SERVER_OPTIONS, port=self._port)
        self._server = self._loop.run(self.library.start(setup), self.timeout)
        self._port = self._server.port
        self.transcript.note("server", f"{self.library.name} listens on {self.address}")
        return self

    def drain(self) -> None:
        """Let the reference servicers drain; the server itself goes on. For cases that need ``REFERENCE``.

        Raises ``NotApplicable`` when the protocol's servicers have no such state.
        """

        async def begin() -> None:
            for servicer in draining:
                servicer.drain()

        draining = [made.servicer for made in self._made if hasattr(made.servicer, "drain")]
        if not draining:
            raise NotApplicable("no-drain", "the servicers of this protocol cannot be told to drain")
        self._loop.run(begin(), self.timeout)
        self.transcript.note("server", "the servicers drain")

    def begin_stop(self, grace: float | None) -> concurrent.futures.Future[None]:
        """Begin to stop the server: it has begun when this returns; the future is done when ``stop`` has returned."""
        import asyncio

        self.transcript.note("server", f"stop(grace={grace}) called")
        stopping = asyncio.run_coroutine_threadsafe(self.server.stop(grace), self._loop.loop)
        # A coroutine that was handed over later gets its first turn after the stop has had its own. Without this, the
        # next call of a case may cross the beginning of the stop, and libraries answer such calls in many ways.
        self._loop.run(asyncio.sleep(0), self.timeout)
        return stopping

    def stop(self, grace: float | None) -> None:
        """Stop the server and wait until it has stopped."""
        held, self._server = [self.server], None
        self.transcript.note("server", f"stop(grace={grace}) called")
        self._loop.run(stop_and_drop(held, grace), self.timeout + (grace or 0))
        self.transcript.note("server", "stop returned")

    def relay(self) -> RelayControl:
        """A TCP relay before the server, closed with the target."""
        host, port = self.address.split(":")
        relay = self._loop.run(Relay(host, int(port)).start(), self.timeout)
        self._relays.append(relay)
        return RelayControl(relay, self._loop, self.timeout)

    def close(self) -> None:
        """Take down clients, relays, server and engine, whatever state they are in."""
        try:
            super().close()
            for relay in self._relays:
                self._loop.run(relay.close(), self.timeout)
        finally:
            self._relays.clear()
            try:
                if self._server is not None:
                    self.stop(None)
            finally:
                self._engine.close()


class RelayControl:
    """What a case may do with a relay: connect to its address, and cut it."""

    def __init__(self, relay: Relay, loop: LoopThread, timeout: float) -> None:
        self._relay = relay
        self._loop = loop
        self._timeout = timeout

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._relay.port}"

    def cut(self) -> None:
        """Reset every connection that goes through the relay."""
        self._loop.run(self._relay.cut(), self._timeout)
