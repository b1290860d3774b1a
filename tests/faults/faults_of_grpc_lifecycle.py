"""Faults of a server's ports and of its end."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from pytest_grpc_conformance.servers.base import RunningServer, ServerSetup
from tests.faults.faulty_library import FaultyLibrary, with_function
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class FaultyServer:
    """A server object that passes everything on; subclasses override what is faulty."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class EndlessGrace(FaultyServer):
    async def stop(self, grace: float | None) -> None:
        await self._real.stop(600)


class AnswersReversed(FaultyServer):
    async def wait_for_termination(self, timeout: float | None = None) -> bool:
        return not await self._real.wait_for_termination(timeout)


class PortUnbound(FaultyServer):
    def add_insecure_port(self, address: str) -> int:
        with contextlib.suppress(RuntimeError):
            self._real.add_insecure_port(address)
        return 0


def _unbound(setup: ServerSetup) -> ServerSetup:
    def registering(register: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda server: register(PortUnbound(server))

    return dataclasses.replace(setup, register=[registering(one) for one in setup.register])


def _shielded(handler: Any, path: str) -> Any:
    def change(function: Any) -> Any:
        @functools.wraps(function)
        async def shielded(request: Any, context: Any) -> Any:
            return await asyncio.shield(asyncio.ensure_future(function(request, context)))

        return shielded

    return with_function(handler, change)


class PortUntold(FaultyLibrary):
    async def start(self, setup: ServerSetup) -> RunningServer:
        running = await super().start(setup)
        running.port = 0
        return running


endless_grace = Mutant(library=FaultyLibrary(native=EndlessGrace))
termination_answers_reversed = Mutant(library=FaultyLibrary(native=AnswersReversed))
second_port_unbound = Mutant(library=FaultyLibrary(setup=_unbound))
bound_port_untold = Mutant(library=PortUntold())
handlers_not_cancelled_at_stop = Mutant(library=FaultyLibrary(handler=_shielded))


def _fault(mutant: str, caught_by: dict[str, str]) -> Fault:
    return Fault(mutant, caught_by={f"grpc_lifecycle/{name}": row for name, row in caught_by.items()}, protocols=WIRE)


FAULTS = (
    _fault(
        "endless_grace",
        {
            "stop_without_grace": "GRPC-LIFE-12",
            "grace_ends": "GRPC-LIFE-15",
            "no_grace_in_numbers": "GRPC-LIFE-17",
        },
    ),
    _fault("termination_answers_reversed", {"wait_for_termination": "GRPC-LIFE-25"}),
    _fault("second_port_unbound", {"second_port": "GRPC-LIFE-02", "port_taken": "GRPC-LIFE-06"}),
    _fault("bound_port_untold", {"bound_port": "GRPC-LIFE-01"}),
    _fault("handlers_not_cancelled_at_stop", {"handler_cancelled": "GRPC-LIFE-26"}),
)
