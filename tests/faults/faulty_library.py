"""Faulty server libraries: grpcio with one thing broken, in its frames, its handlers, its context or its life."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

import grpc
import grpc.aio

from pytest_grpc_conformance.servers.base import RunningServer, ServerLibrary, ServerSetup, start_aio
from tests.faults.frame_proxy import FrameFault, FrameProxy

HandlerChange = Callable[[Any, str], Any]
"""From a handler and its path to the one that is served in its place."""


class FaultyContext:
    """A servicer context that passes everything on; subclasses override what is faulty."""

    def __init__(self, real: Any) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class FaultyLibrary(ServerLibrary):
    """grpcio's asyncio server with a fault.

    ``frames``: a class of frame faults, one object for each connection. ``context``: a subclass of ``FaultyContext``.
    ``handler``: changes each registered handler. ``setup``: changes what the server is started with. ``native``: wraps
    the server object whose ``start``, ``stop`` and so on are called. ``proxy``: what listens before the server, made
    from the server's port.
    """

    name: ClassVar[str] = "grpcio"
    requirement: ClassVar[str] = "grpcio>=1.81.1"

    def __init__(
        self,
        *,
        frames: Callable[[], FrameFault] | None = None,
        context: Callable[[Any], Any] | None = None,
        handler: HandlerChange | None = None,
        setup: Callable[[ServerSetup], ServerSetup] | None = None,
        native: Callable[[Any], Any] | None = None,
        proxy: Callable[[int], FrameProxy] | None = None,
    ) -> None:
        self._proxy = functools.partial(FrameProxy, fault=frames) if frames else proxy
        self._setup = setup
        self._native = native
        changes = [functools.partial(_in_context, context)] if context else []
        self._changes: list[HandlerChange] = [*([handler] if handler else []), *changes]

    async def start(self, setup: ServerSetup) -> RunningServer:
        if self._changes:
            setup = dataclasses.replace(setup, register=[self._registering(one) for one in setup.register])
        if self._setup is not None:
            setup = self._setup(setup)
        running = await start_aio(grpc.aio.server, setup)
        if self._native is not None:
            running.native = self._native(running.native)
        if self._proxy is None:
            return running
        return _Proxied(running, await self._proxy(running.port).start())

    def _registering(self, register: Callable[[Any], None]) -> Callable[[Any], None]:
        return lambda server: register(_Registrar(server, self._change))

    def _change(self, handler: Any, path: str) -> Any:
        for change in self._changes:
            handler = change(handler, path)
        return handler


class _Proxied(RunningServer):
    """A server behind a frame proxy, whose port is the one to connect to."""

    def __init__(self, running: RunningServer, proxy: FrameProxy) -> None:
        self.port = proxy.port
        self.native = running.native
        self._running = running
        self._proxy = proxy

    async def stop(self, grace: float | None) -> None:
        try:
            await self._running.stop(grace)
        finally:
            await self._proxy.close()


class _Registrar:
    """A server object that changes the handlers which are added to it."""

    def __init__(self, server: Any, change: HandlerChange) -> None:
        self._server = server
        self._change = change

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._server.add_generic_rpc_handlers(tuple(_Changed(handler, self._change) for handler in handlers))

    def add_registered_method_handlers(self, service: str, handlers: dict[str, Any]) -> None:
        changed = {name: self._change(handler, f"/{service}/{name}") for name, handler in handlers.items()}
        self._server.add_registered_method_handlers(service, changed)


class _Changed(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # The class takes no arguments when it runs.
    def __init__(self, generic: Any, change: HandlerChange) -> None:
        self._generic = generic
        self._change = change
        self._changed: dict[str, tuple[Any, Any]] = {}

    def service(self, details: Any) -> Any:
        found = self._generic.service(details)
        if found is None:
            return None
        # Changed once, as a handler is that is registered by method: a fault may remember earlier calls.
        known = self._changed.get(details.method)
        if known is None or known[0] is not found:
            known = self._changed[details.method] = (found, self._change(found, details.method))
        return known[1]


def _in_context(context: Callable[[Any], Any], handler: Any, path: str) -> Any:
    """The handler with its function called in a faulty context."""
    return with_function(handler, lambda function: in_context(function, context))


def with_function(handler: Any, change: Callable[[Any], Any]) -> Any:
    """A method handler whose function is changed; kind and serializers stay."""
    kind = next(k for k in ("unary_unary", "unary_stream", "stream_unary", "stream_stream") if getattr(handler, k))
    make = getattr(grpc, f"{kind}_rpc_method_handler")
    return make(
        change(getattr(handler, kind)),
        request_deserializer=handler.request_deserializer,
        response_serializer=handler.response_serializer,
    )


def in_context(function: Any, context: Callable[[Any], Any]) -> Any:
    """The function, of the same kind, that is given another context."""
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def generator(request: Any, given: Any) -> Any:
            async for response in function(request, context(given)):
                yield response

        return generator
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def coroutine(request: Any, given: Any) -> Any:
            return await function(request, context(given))

        return coroutine

    @functools.wraps(function)
    def plain(request: Any, given: Any) -> Any:
        return function(request, context(given))

    return plain
