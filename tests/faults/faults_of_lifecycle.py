"""Faulty server libraries: stops that come too early, too late, never, or that nobody new notices."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from pytest_grpc_conformance.servers.base import BindFailed, RunningServer, ServerLibrary, ServerSetup
from pytest_grpc_conformance.servers.grpcio import GrpcioAio
from tests.faults.plant import Mutant
from tests.faults.table import Fault

Stop = Callable[[RunningServer, float | None], Awaitable[None]]
EVER = 3600.0


class _Stopping(RunningServer):
    """A server of grpcio with another ``stop``."""

    def __init__(self, server: RunningServer, stop: Stop) -> None:
        self.port = server.port
        self.native: Any = server.native
        self._server = server
        self._stop = stop

    async def stop(self, grace: float | None) -> None:
        await self._stop(self._server, grace)


class _Library(ServerLibrary):
    """grpcio with another ``stop``, made anew for each server."""

    name: ClassVar[str] = GrpcioAio.name
    requirement: ClassVar[str] = GrpcioAio.requirement

    def __init__(self, make: Callable[[], Stop], *, starts_again: bool = True) -> None:
        self._make = make
        self._starts_again = starts_again

    async def start(self, setup: ServerSetup) -> RunningServer:
        if setup.port and not self._starts_again:
            raise BindFailed("the port is still in use")
        return _Stopping(await GrpcioAio().start(setup), self._make())


def _with_stop(stop: Stop) -> Mutant:
    return Mutant(library=_Library(lambda: stop))


async def _at_once(server: RunningServer, grace: float | None) -> None:
    await server.stop(None)


ignores_the_grace = _with_stop(_at_once)


async def _later(server: RunningServer, grace: float | None) -> None:
    if grace:
        await asyncio.sleep(grace)
    await server.stop(None)


serves_on_until_the_grace_is_over = _with_stop(_later)


async def _zero_is_unset(server: RunningServer, grace: float | None) -> None:
    await server.stop(grace or EVER)


takes_no_grace_for_any = _with_stop(_zero_is_unset)


async def _wait_for_calls(server: RunningServer, grace: float | None) -> None:
    await server.stop(EVER if grace else grace)


waits_for_calls_beyond_the_grace = _with_stop(_wait_for_calls)


def _in_turn() -> Stop:
    lock = asyncio.Lock()

    async def stop(server: RunningServer, grace: float | None) -> None:
        async with lock:
            await server.stop(grace)

    return stop


stops_one_after_the_other = Mutant(library=_Library(_in_turn))


def _second_hangs() -> Stop:
    calls = 0

    async def stop(server: RunningServer, grace: float | None) -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            await asyncio.sleep(EVER)
        await server.stop(grace)

    return stop


second_stop_hangs = Mutant(library=_Library(_second_hangs))


async def _plain(server: RunningServer, grace: float | None) -> None:
    await server.stop(grace)


keeps_its_port = Mutant(library=_Library(lambda: _plain, starts_again=False))

FAULTS = (
    Fault(
        "ignores_the_grace",
        "F145",
        caught_by={
            "lifecycle/stream_in_flight_finishes_within_the_grace": "GRPC-LIFE-13 OE-ERR-014",
            "lifecycle/no_stream_is_lost_within_the_grace": "GRPC-LIFE-13",
            "lifecycle/late_reader_gets_everything_within_the_grace": "GRPC-LIFE-14 GRPC-LIFE-13",
        },
    ),
    Fault(
        "serves_on_until_the_grace_is_over",
        "F147",
        caught_by={
            "lifecycle/new_call_is_refused_while_draining": "OE-ERR-014 GRPC-STATUS-27 GRPC-LIFE-22",
            "lifecycle/new_call_does_not_reach_the_engine_while_draining": "OE-ERR-014 GRPC-LIFE-22",
            "lifecycle/stop_returns_with_the_last_stream": "GRPC-LIFE-13",
            "lifecycle/stop_without_streams_returns_at_once": "GRPC-LIFE-13",
        },
    ),
    Fault(
        "takes_no_grace_for_any",
        caught_by={
            "lifecycle/stop_without_grace_ends_streams": "GRPC-LIFE-12",
            "lifecycle/grace_of_nothing_is_none": "GRPC-LIFE-17",
        },
    ),
    Fault(
        "waits_for_calls_beyond_the_grace",
        "F146",
        caught_by={
            "lifecycle/stream_ends_with_the_grace": "GRPC-LIFE-15",
            "lifecycle/unread_streams_do_not_hold_up_a_stop": "GRPC-LIFE-20 GRPC-FAIR-02",
        },
    ),
    Fault("stops_one_after_the_other", caught_by={"lifecycle/shorter_grace_wins": "GRPC-LIFE-18"}),
    Fault("second_stop_hangs", caught_by={"lifecycle/repeated_stop_returns": "GRPC-LIFE-24"}),
    Fault("keeps_its_port", caught_by={"lifecycle/port_can_be_had_again": "GRPC-LIFE-08"}),
)
