"""Faults in how handlers are called: what counts as which kind, where they run, what their result becomes."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

from pytest_grpc_conformance.servers.base import ServerSetup
from tests.faults.faulty_library import FaultyLibrary, with_function
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault

Function = Callable[..., Any]


def _calling(change: Callable[[Function], Function]) -> Mutant:
    """A library that calls another function in place of each handler's."""
    return Mutant(library=FaultyLibrary(handler=lambda handler, path: with_function(handler, change)))


def _is_async(function: Function) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)


def _partial_as_sync(function: Function) -> Function:
    """Looks at the object itself, and finds no coroutine function in a partial."""
    if not isinstance(function, functools.partial):
        return function

    def around(request: Any, context: Any) -> Any:
        result = function(request, context)
        if inspect.iscoroutine(result):
            result.close()
        return object()  # As little a message as the coroutine.

    return around


def _awaits_results(function: Function) -> Function:
    """Awaits whatever a sync handler gives, if that can be awaited."""
    if _is_async(function):
        return function

    async def around(request: Any, context: Any) -> Any:
        result = function(request, context)
        return await result if inspect.isawaitable(result) else result

    return around


def _sends_what_a_stream_returns(function: Function) -> Function:
    if not inspect.iscoroutinefunction(function):
        return function

    async def around(request: Any, context: Any) -> Any:
        result = await function(request, context)
        if result is not None:
            await context.write(result)

    return around


def _sync_on_the_loop(function: Function) -> Function:
    if _is_async(function) or inspect.isgeneratorfunction(function):
        return function

    async def around(request: Any, context: Any) -> Any:
        return function(request, context)

    return around


def _streams_iterators_only(function: Function) -> Function:
    """Calls ``next`` on what a sync streaming handler returned, without ``iter``."""
    if _is_async(function):
        return function

    def around(request: Any, context: Any) -> Any:
        result = function(request, context)
        if isinstance(result, list | tuple):
            raise TypeError(f"{type(result).__name__!r} object is not an iterator")
        return result

    return around


def _reads_one_ahead(function: Function) -> Function:
    """Holds one item of a sync stream back, and loses it when the next one raises."""
    if not inspect.isgeneratorfunction(function):
        return function

    def around(request: Any, context: Any) -> Any:
        held: list[Any] = []
        for item in function(request, context):
            yield from held
            held = [item]
        yield from held

    return around


def _converts(convert: Callable[[Any], Any]) -> Callable[[Function], Function]:
    """Results of async handlers are converted before they are sent."""

    def change(function: Function) -> Function:
        if inspect.isasyncgenfunction(function):

            async def generator(request: Any, context: Any) -> Any:
                async for item in function(request, context):
                    yield convert(item)

            return generator
        if inspect.iscoroutinefunction(function):

            async def coroutine(request: Any, context: Any) -> Any:
                return convert(await function(request, context))

            return coroutine
        return function

    return change


def _in_an_empty_context(function: Function) -> Function:
    """Each call in a task whose context variables are all at their defaults."""
    if not inspect.iscoroutinefunction(function):
        return function

    async def around(request: Any, context: Any) -> Any:
        return await contextvars.Context().run(asyncio.ensure_future, function(request, context))

    return around


def _with_the_context_of_the_start(function: Function) -> Function:
    if _is_async(function):
        return function
    there = contextvars.copy_context()
    return lambda request, context: there.copy().run(function, request, context)


def _one_at_a_time() -> Callable[[Function], Function]:
    lock = asyncio.Lock()

    def change(function: Function) -> Function:
        if not inspect.iscoroutinefunction(function):
            return function

        async def around(request: Any, context: Any) -> Any:
            async with lock:
                return await function(request, context)

        return around

    return change


def _bytes_like_as_bytes(value: Any) -> Any:
    return bytes(value) if isinstance(value, bytearray | memoryview | list) else value


def _text_as_latin(value: Any) -> Any:
    return value.encode("latin-1") if isinstance(value, str) else b"None" if value is None else value


def _swallows_serializer_failures(handler: Any, path: str) -> Any:
    """What does not serialize is sent as an empty message."""
    serializer = handler.response_serializer
    if serializer is None:
        return handler

    def serialize(message: Any) -> bytes:
        try:
            return bytes(serializer(message))
        except Exception:
            return b""

    return handler._replace(response_serializer=serialize)


def _without_pool(setup: ServerSetup) -> ServerSetup:
    """``migration_thread_pool`` is taken and forgotten."""
    kept = {name: value for name, value in setup.arguments.items() if name != "migration_thread_pool"}
    return dataclasses.replace(setup, arguments=kept)


takes_partials_for_sync = _calling(_partial_as_sync)
awaits_what_sync_handlers_give = _calling(_awaits_results)
sends_what_a_stream_returns = _calling(_sends_what_a_stream_returns)
runs_sync_handlers_on_the_loop = _calling(_sync_on_the_loop)
forgets_the_pool = Mutant(library=FaultyLibrary(setup=_without_pool))
streams_iterators_only = _calling(_streams_iterators_only)
reads_one_item_ahead = _calling(_reads_one_ahead)
as_grpcio_loses_aborts = Mutant(library=FaultyLibrary())
"""grpcio itself loses the abort, so that no planted fault can be told from its own deviation (GRPC-HND-08)."""
encodes_text_as_latin = _calling(_converts(_text_as_latin))
sends_what_is_like_bytes = _calling(_converts(_bytes_like_as_bytes))
swallows_serializer_failures = Mutant(library=FaultyLibrary(handler=_swallows_serializer_failures))
serves_one_call_at_a_time = _calling(_one_at_a_time())
calls_in_an_empty_context = _calling(_in_an_empty_context)
carries_context_into_the_pool = _calling(_with_the_context_of_the_start)

FAULTS = (
    Fault(
        "takes_partials_for_sync",
        caught_by={
            "grpc_handlers/unary_handler_of_any_kind_answers": "GRPC-HND-01",
            "grpc_handlers/streaming_handler_of_any_kind_streams": "GRPC-HND-02",
        },
        protocols=WIRE,
    ),
    Fault(
        "awaits_what_sync_handlers_give",
        caught_by={"grpc_handlers/disguised_coroutine_is_no_async_handler": "GRPC-HND-03"},
        protocols=WIRE,
    ),
    Fault(
        "sends_what_a_stream_returns",
        caught_by={"grpc_handlers/coroutine_stream_without_writes_is_empty": "GRPC-HND-04"},
        protocols=WIRE,
    ),
    Fault(
        "runs_sync_handlers_on_the_loop",
        caught_by={"grpc_handlers/sync_unary_handler_runs_in_a_pool": "GRPC-HND-05"},
        protocols=WIRE,
    ),
    Fault(
        "forgets_the_pool",
        caught_by={"grpc_handlers/sync_unary_handler_runs_in_a_pool": "GRPC-HND-05"},
        protocols=WIRE,
    ),
    Fault(
        "streams_iterators_only",
        caught_by={"grpc_handlers/sync_stream_may_be_any_iterable": "GRPC-HND-06"},
        protocols=WIRE,
    ),
    Fault(
        "reads_one_item_ahead",
        caught_by={"grpc_handlers/sync_stream_that_raises_delivers_what_came_before": "GRPC-HND-07"},
        protocols=WIRE,
    ),
    Fault(
        "as_grpcio_loses_aborts",
        caught_by={"grpc_handlers/sync_generator_that_aborts_ends_with_its_status": "GRPC-HND-08"},
        protocols=WIRE,
    ),
    Fault(
        "encodes_text_as_latin",
        caught_by={"grpc_handlers/none_and_text_become_messages": "GRPC-HND-09"},
        protocols=WIRE,
    ),
    Fault(
        "sends_what_is_like_bytes",
        caught_by={"grpc_handlers/value_of_another_type_ends_unknown": "GRPC-HND-10"},
        protocols=WIRE,
    ),
    Fault(
        "swallows_serializer_failures",
        caught_by={"grpc_handlers/serializer_that_raises_ends_unknown": "GRPC-HND-11"},
        protocols=WIRE,
    ),
    Fault(
        "serves_one_call_at_a_time",
        caught_by={"grpc_handlers/handlers_run_on_the_loop_that_started_the_server": "GRPC-HND-16"},
        protocols=WIRE,
    ),
    Fault(
        "calls_in_an_empty_context",
        caught_by={
            "grpc_handlers/context_variables_of_the_start_are_seen_and_copied": "GRPC-HND-17",
            "grpc_interceptors/context_variables_of_an_interceptor_reach_its_handler_only": "GRPC-HND-18",
        },
        protocols=WIRE,
    ),
    Fault(
        "carries_context_into_the_pool",
        caught_by={"grpc_handlers/sync_handlers_see_no_context_variables": "GRPC-HND-19"},
        protocols=WIRE,
    ),
)
