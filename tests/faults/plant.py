"""How a fault is planted: around the reference servicer's messages, in the engine, or in the server library."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

from pytest_grpc_conformance import registry
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.base import Message, Registration, WireProtocol
from pytest_grpc_conformance.servers.base import ServerLibrary
from pytest_grpc_conformance.shared import WIRE
from pytest_grpc_conformance.targets.plan import TargetPlan


@dataclass(frozen=True)
class Call:
    """What a mutated Generate knows of its call."""

    wire: WireProtocol
    engine: GatedEngine
    request: Message
    context: Any


Mutation = Callable[[AsyncIterator[Message], Call], AsyncIterator[Message]]
"""From the reference servicer's messages to those of a faulty one."""


@dataclass(frozen=True)
class Mutant:
    """A faulty target; ``--grpc-target module:name.openengine`` (or ``.smg``) names its plan for a protocol.

    ``generate`` changes the messages of Generate; ``wrap`` replaces a whole servicer (it gets the reference one and
    returns an object with the same methods); ``engine`` is a faulty engine class; ``library`` a faulty server library.
    """

    generate: Mutation | None = None
    wrap: Callable[[Any, WireProtocol, GatedEngine], Any] | None = None
    engine: Callable[..., GatedEngine] | None = None
    library: ServerLibrary | None = None

    def __getattr__(self, name: str) -> TargetPlan:
        if name == WIRE:
            return TargetPlan(library=self.library)
        if name.startswith("_") or name not in registry.names(registry.PROTOCOLS):
            raise AttributeError(name)
        return self.plan(registry.protocol(name))

    def plan(self, wire: WireProtocol) -> TargetPlan:
        """The plan for one protocol. Goldens apply, since whatever differs from the reference is the fault."""

        def servicers(engine: Any) -> list[Registration]:
            return [self._mutated(registration, wire, engine) for registration in wire.servicers(engine)]

        return TargetPlan(servicers=servicers, engine=self.engine, library=self.library, reference=True)

    def _mutated(self, registration: Registration, wire: WireProtocol, engine: GatedEngine) -> Registration:
        servicer = registration.servicer
        if self.generate is not None and hasattr(servicer, "Generate"):
            servicer = _MutatedGenerate(servicer, self.generate, wire, engine)
        if self.wrap is not None:
            servicer = self.wrap(servicer, wire, engine)
        return Registration(servicer, registration.add)


class _MutatedGenerate:
    """The reference servicer with another Generate."""

    def __init__(self, reference: Any, mutation: Mutation, wire: WireProtocol, engine: GatedEngine) -> None:
        self._reference = reference
        self._mutation = mutation
        self._wire = wire
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reference, name)

    async def Generate(self, request: Message, context: Any) -> AsyncIterator[Message]:
        messages = self._reference.Generate(request, context)
        call = Call(self._wire, self._engine, request, context)
        async for message in self._mutation(messages, call):
            yield message
