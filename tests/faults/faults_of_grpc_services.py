"""Faults in the choice of handlers, in request streams, and under the servicers that grpcio ships."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pytest_grpc_conformance.servers.base import ServerSetup
from pytest_grpc_conformance.wire.frames import Flag, Kind
from tests.faults.faults_of_grpc_status import TrailersFault
from tests.faults.faulty_library import FaultyContext, FaultyLibrary, with_function
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class Registrar:
    """A server object as those that register see it; subclasses override what is faulty."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._generic: list[Any] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    def finish(self) -> None:
        """Everything has been registered."""


def registrars(kind: Callable[[Any], Registrar]) -> Callable[[ServerSetup], ServerSetup]:
    """A change of set-up: everything is registered through one such object."""

    def change(setup: ServerSetup) -> ServerSetup:
        def register(server: Any) -> None:
            registrar = kind(server)
            for one in setup.register:
                one(registrar)
            registrar.finish()

        return dataclasses.replace(setup, register=[register])

    return change


class NoGeneric(Registrar):
    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        pass


class NoRegistered(Registrar):
    def add_registered_method_handlers(self, service: str, handlers: Any) -> None:
        pass


class GenericBackwards(Registrar):
    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        self._generic = [*handlers, *self._generic]

    def finish(self) -> None:
        self._server.add_generic_rpc_handlers(tuple(self._generic))


class FailuresAreMisses(Registrar):
    """A generic handler that raises counts as one that has no such method."""

    def add_generic_rpc_handlers(self, handlers: Iterable[Any]) -> None:
        for handler in handlers:
            handler.service = functools.partial(_none_on_failure, handler.service)
        self._server.add_generic_rpc_handlers(tuple(handlers))


def _none_on_failure(service: Callable[[Any], Any], details: Any) -> Any:
    try:
        return service(details)
    except ValueError:
        return None


class MissingIsUnknown(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        return [passing.with_field("grpc-status", "2") if fields[b"grpc-status"] == b"12" else passing]


class ExhaustedIsInternal(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        return [passing.with_field("grpc-status", "13") if fields[b"grpc-status"] == b"8" else passing]


class BackEndGone(FrameFault):
    """A stream that is refused is taken for a failure of what stands behind the server."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.RST_STREAM:
            return [passing]
        fields = (
            (b":status", b"200"),
            (b"content-type", b"application/grpc"),
            (b"grpc-status", b"14"),
            (b"grpc-message", b"unix:/run/backend.sock: broken pipe"),
        )
        return [Passing(Kind.HEADERS, Flag.END_STREAM, passing.stream, fields=fields)]


class AbsentIsUnknown(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        return [passing.with_field("grpc-status", "2") if fields[b"grpc-status"] == b"5" else passing]


class NoTrailingMetadata(FaultyContext):
    def set_trailing_metadata(self, metadata: Any) -> None:
        pass


class PeerOfThePipe(FaultyContext):
    def peer(self) -> str:
        return "unix:/run/backend.sock"


class DeafAfterStart:
    """A started server that takes no more handlers."""

    def __init__(self, native: Any) -> None:
        self._native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    def add_generic_rpc_handlers(self, handlers: Any) -> None:
        pass


def _last_request_lost(handler: Any, path: str) -> Any:
    if not handler.request_streaming:
        return handler

    async def but_the_last(requests: Any) -> Any:
        held: list[Any] = []
        async for request in requests:
            held.append(request)
            if len(held) > 1:
                yield held.pop(0)

    def change(function: Any) -> Any:
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def generator(requests: Any, context: Any) -> Any:
                async for response in function(but_the_last(requests), context):
                    yield response

            return generator

        @functools.wraps(function)
        async def coroutine(requests: Any, context: Any) -> Any:
            return await function(but_the_last(requests), context)

        return coroutine

    return with_function(handler, change)


def _responses_held_back(handler: Any, path: str) -> Any:
    """Each response of a bidi stream goes out with the next one."""
    if not (handler.request_streaming and handler.response_streaming):
        return handler

    def change(function: Any) -> Any:
        if not inspect.isasyncgenfunction(function):
            return function

        @functools.wraps(function)
        async def generator(requests: Any, context: Any) -> Any:
            held: list[Any] = []
            async for response in function(requests, context):
                held.append(response)
                if len(held) == 2:
                    yield held[0]
                    yield held[1]
                    held.clear()
            for response in held:
                yield response

        return generator

    return with_function(handler, change)


def _responses_twice(handler: Any, path: str) -> Any:
    """Every response of a bidi stream goes out twice, and every message that a handler writes."""

    def change(function: Any) -> Any:
        if not inspect.isasyncgenfunction(function):
            return lambda request, context: function(request, _WritesTwice(context))

        @functools.wraps(function)
        async def generator(request: Any, context: Any) -> Any:
            async for response in function(request, context):
                yield response
                yield response

        return generator

    if not handler.response_streaming:
        return handler
    return with_function(handler, lambda function: _of_its_kind(function, change(function)))


def _of_its_kind(function: Any, changed: Any) -> Any:
    """A coroutine function again, where a writer was one: libraries tell handlers apart by that."""
    if not inspect.iscoroutinefunction(function):
        return changed

    @functools.wraps(function)
    async def coroutine(request: Any, context: Any) -> Any:
        return await changed(request, context)

    return coroutine


class _WritesTwice(FaultyContext):
    async def write(self, message: Any) -> None:
        await self._real.write(message)
        await self._real.write(message)


def _answers_remembered(handler: Any, path: str) -> Any:
    """A unary method's first answer to a request is given again."""
    if handler.request_streaming or handler.response_streaming:
        return handler
    answers: dict[bytes, Any] = {}

    def change(function: Any) -> Any:
        @functools.wraps(function)
        async def coroutine(request: Any, context: Any) -> Any:
            key = request.SerializeToString()
            if key not in answers:
                answer = function(request, context)
                answers[key] = await answer if inspect.isawaitable(answer) else answer
            return answers[key]

        return coroutine

    return with_function(handler, change)


no_generic = Mutant(library=FaultyLibrary(setup=registrars(NoGeneric)))
no_registered = Mutant(library=FaultyLibrary(setup=registrars(NoRegistered)))
generic_backwards = Mutant(library=FaultyLibrary(setup=registrars(GenericBackwards)))
failures_are_misses = Mutant(library=FaultyLibrary(setup=registrars(FailuresAreMisses)))
missing_is_unknown = Mutant(library=FaultyLibrary(frames=MissingIsUnknown))
exhausted_is_internal = Mutant(library=FaultyLibrary(frames=ExhaustedIsInternal))
back_end_gone = Mutant(library=FaultyLibrary(frames=BackEndGone))
absent_is_unknown = Mutant(library=FaultyLibrary(frames=AbsentIsUnknown))
no_trailing_metadata = Mutant(library=FaultyLibrary(context=NoTrailingMetadata))
peer_of_the_pipe = Mutant(library=FaultyLibrary(context=PeerOfThePipe))
deaf_after_start = Mutant(library=FaultyLibrary(native=DeafAfterStart))
last_request_lost = Mutant(library=FaultyLibrary(handler=_last_request_lost))
responses_held_back = Mutant(library=FaultyLibrary(handler=_responses_held_back))
responses_twice = Mutant(library=FaultyLibrary(handler=_responses_twice))
answers_remembered = Mutant(library=FaultyLibrary(handler=_answers_remembered))

CAUGHT = {
    "no_generic": {
        "grpc_services/generic_handlers_alone": "GRPC-SVC-05",
        "grpc_services/method_in_the_generic_handler_only": "GRPC-SVC-07",
    },
    "no_registered": {"grpc_services/registered_wins": "GRPC-SVC-06"},
    "generic_backwards": {"grpc_services/order_of_generic_handlers": "GRPC-SVC-08"},
    "failures_are_misses": {"grpc_services/generic_handler_that_raises": "GRPC-SVC-09"},
    "missing_is_unknown": {"grpc_services/no_handlers": "GRPC-SVC-10"},
    "last_request_lost": {"grpc_services/request_streams": "GRPC-SVC-11"},
    "exhausted_is_internal": {"grpc_services/request_stream_over_the_limit": "GRPC-SVC-11"},
    "responses_held_back": {"grpc_services/ping_pong": "GRPC-SVC-11"},
    "no_trailing_metadata": {"grpc_services/metadata_of_request_streams": "GRPC-SVC-11"},
    "peer_of_the_pipe": {"grpc_services/context_of_generic_handlers": "GRPC-SVC-12"},
    "deaf_after_start": {"grpc_services/generic_handler_added_after_start": "GRPC-SVC-13"},
    "back_end_gone": {"grpc_services/errors_behind_the_server_stay_there": "GRPC-SVC-14"},
    "absent_is_unknown": {"grpc_services_shipped/health_check": "GRPC-SVC-01"},
    "responses_twice": {
        "grpc_services_shipped/health_watch": "GRPC-SVC-02",
        "grpc_services_shipped/reflection": "GRPC-SVC-04",
    },
    "answers_remembered": {"grpc_services_shipped/health_in_graceful_shutdown": "GRPC-SVC-03"},
}
SINCE = {"no_registered": "1.84"}
"""grpc.aio before 1.84 looks at no handler that is registered by method."""
FAULTS = tuple(
    Fault(mutant, caught_by=caught, protocols=WIRE, since=SINCE.get(mutant, "")) for mutant, caught in CAUGHT.items()
)
