"""What every target offers to a case, and what it must say of itself."""

from __future__ import annotations

import abc
import enum
from typing import TYPE_CHECKING, Any

from pytest_grpc_conformance.protocols.base import Request, WireProtocol
from pytest_grpc_conformance.transcript import Transcript

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gate import Gate
    from pytest_grpc_conformance.engines.gated import GatedEngine
    from pytest_grpc_conformance.engines.script import Script
    from pytest_grpc_conformance.protocols.client import Client
    from pytest_grpc_conformance.protocols.stream import GenerateStream


class TargetBroken(RuntimeError):
    """The target could not be started, reached or kept alive; the message says what was seen, in few lines."""

    tells_all = True


class NotApplicable(Exception):
    """The target cannot carry a case; the message says why, ``code`` is a word for reports."""

    def __init__(self, code: str, reason: str) -> None:
        super().__init__(reason)
        self.code = code
        self.reason = reason


class Capability(enum.Enum):
    """What a case may need of a target beyond answering calls."""

    SCRIPTED = "scripted"
    """The engine plays scripts and has gates; what reached it can be read."""
    LIFECYCLE = "lifecycle"
    """The case may stop the server and start it again."""
    REFERENCE = "reference"
    """The servicer is the protocol's reference servicer: it fixes message boundaries that protocols leave open (those
    of the goldens), and follows rows of level REF."""


WHY_NOT = {
    Capability.SCRIPTED: "the engine of this target cannot be scripted or gated",
    Capability.LIFECYCLE: "this target's server cannot be stopped and started by a case",
    Capability.REFERENCE: "the protocol leaves this open; it is asked of the reference servicer only",
}


class Target(abc.ABC):
    """One server under test, with one protocol. A case gets a target of its own."""

    name: str
    """What the column of a report says."""
    protocol: WireProtocol
    capabilities: frozenset[Capability]
    timeout: float
    """Seconds that any single wait may take."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self._clients: list[Client] = []
        self._client: Client | None = None

    @property
    @abc.abstractmethod
    def address(self) -> str:
        """``host:port``."""

    @property
    @abc.abstractmethod
    def model(self) -> str:
        """The model name that requests carry."""

    @property
    def engine(self) -> GatedEngine:
        """The fake engine behind a target that is ``SCRIPTED``; else raises ``NotApplicable``."""
        raise NotApplicable(Capability.SCRIPTED.value, WHY_NOT[Capability.SCRIPTED])

    @property
    def client(self) -> Client:
        """The case's first connection, opened when it is first used."""
        if self._client is None:
            self._client = self.connect()
        return self._client

    def connect(self, *, address: str | None = None, options: tuple[tuple[str, Any], ...] = ()) -> Client:
        """A further connection, closed with the target."""
        from pytest_grpc_conformance.protocols.client import Client

        client = Client(
            self.protocol,
            address or self.address,
            self.transcript,
            model=self.model,
            timeout=self.timeout,
            options=options,
        )
        self._clients.append(client)
        return client

    def generate(self, request: Request, *, deadline: float | None = None) -> GenerateStream:
        """Start a Generate call on the first connection."""
        return self.client.generate(request, deadline=deadline)

    def prepare(self, request_id: str | None, script: Script, *, open: bool = False) -> Gate:
        """Tell the fake engine what a request will yield. Raises ``NotApplicable`` without one."""
        return self.engine.prepare(request_id, script, open=open)

    def play(self, script: Script, request: Request) -> GenerateStream:
        """Prepare a script with an open gate and start the request."""
        self.prepare(request.request_id, script, open=True)
        return self.generate(request)

    def close(self) -> None:
        """End all clients of the case."""
        for client in self._clients:
            client.close()
        self._clients.clear()
        self._client = None
