"""The OpenEngine reference servicers on a loopback server, with stubs; and without any server at all."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, NoReturn, TypeVar, cast

import grpc
import pygrpc_native.aio
import pytest
from grpc import aio

from pytest_grpc_conformance.engines.base import Engine
from pytest_grpc_conformance.engines.script import Finish, FinishReason, one_by_one, script, tokens
from pytest_grpc_conformance.protocols.base import ErrorEvent, Request
from pytest_grpc_conformance.protocols.openengine import OPENENGINE
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2, lifecycle_pb2, openengine_pb2_grpc
from pytest_grpc_conformance.protocols.openengine.servicer import InferenceServicer
from pytest_grpc_conformance.protocols.openengine.state import ServerState

LIBRARIES: dict[str, Callable[[], Any]] = {
    "grpc.aio": aio.server,
    "pygrpc_native.aio": pygrpc_native.aio.server,
}
WAIT = 20.0
"""Seconds that anything may take before a test fails."""


@dataclass
class Served:
    """A running server with its state and stubs."""

    state: ServerState
    address: str
    inference: openengine_pb2_grpc.InferenceAsyncStub
    control: openengine_pb2_grpc.ControlAsyncStub

    def call(self, message: generation_pb2.GenerateRequest, **options: Any) -> Any:
        """A running Generate call."""
        return self.inference.Generate(message, **{"timeout": WAIT, **options})

    async def generate(
        self, message: generation_pb2.GenerateRequest, **options: Any
    ) -> list[generation_pb2.GenerateResponse]:
        """All messages of a Generate call; raises ``grpc.aio.AioRpcError`` for a status that is not OK."""
        return [response async for response in self.call(message, **options)]


@contextlib.asynccontextmanager
async def serving(engine: Engine, library: str = "grpc.aio") -> AsyncIterator[Served]:
    """A server on a free port for as long as the block runs."""
    server = LIBRARIES[library]()
    registrations = OPENENGINE.servicers(engine)
    for registration in registrations:
        registration.add(registration.servicer, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        async with aio.insecure_channel(address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            yield Served(
                cast(InferenceServicer, registrations[0].servicer).state,
                address,
                openengine_pb2_grpc.InferenceStub(channel),
                openengine_pb2_grpc.ControlStub(channel),
            )
    finally:
        await server.stop(None)


class Aborted(Exception):
    """What ``CallContext.abort`` raises."""

    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        super().__init__(code.name, details)
        self.code = code


@dataclass
class CallContext:
    """A context without a server."""

    metadata: tuple[tuple[str, str | bytes], ...] = ()
    callbacks: list[Callable[[object], None]] = field(default_factory=list)

    def invocation_metadata(self) -> tuple[tuple[str, str | bytes], ...]:
        return self.metadata

    def add_done_callback(self, callback: Callable[[object], None]) -> None:
        self.callbacks.append(callback)

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn:
        raise Aborted(code, details)


async def collect(engine: Engine, message: generation_pb2.GenerateRequest) -> list[generation_pb2.GenerateResponse]:
    """What the servicer yields for a message, called directly."""
    servicer = InferenceServicer(ServerState(engine))
    return [response async for response in servicer.Generate(message, CallContext())]


T = TypeVar("T")
libraries = pytest.mark.parametrize("library", list(LIBRARIES))

PLAIN = Request("r")
THREE = script(one_by_one(tokens(3)))
ABORTED = lifecycle_pb2.ABORT_STATUS_ABORTED
ALREADY_FINISHED = lifecycle_pb2.ABORT_STATUS_ALREADY_FINISHED
CANCELLED = Finish(FinishReason.CANCELLED)


def message(request: Request = PLAIN) -> generation_pb2.GenerateRequest:
    """A request to the scripted engine."""
    built: generation_pb2.GenerateRequest = OPENENGINE.to_message(request, model="scripted")
    return built


def within(awaitable: Awaitable[T]) -> Awaitable[T]:
    """The same, with a limit in time."""
    return asyncio.wait_for(awaitable, WAIT)


def error_of(received: list[generation_pb2.GenerateResponse]) -> ErrorEvent:
    """The error that the last message is; no other one may be one."""
    events = [OPENENGINE.to_event(response) for response in received]
    assert [isinstance(event, ErrorEvent) for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert isinstance(last, ErrorEvent)
    return last


async def events(call: Any) -> list[Any]:
    """All events of a running call."""
    return [OPENENGINE.to_event(response) async for response in call]


async def abort(served: Served, **target: Any) -> lifecycle_pb2.AbortStatus:
    """What the Abort RPC answers."""
    response = await served.control.Abort(lifecycle_pb2.AbortRequest(**target), timeout=WAIT)
    return response.status


async def status_of(call: Any) -> grpc.StatusCode:
    """The status of a call that has to fail."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code()
