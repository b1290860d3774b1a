"""Faults in how handlers end, in what outlives them, and in how many run at once."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
from collections.abc import Callable
from typing import Any

from pytest_grpc_conformance.servers.base import ServerSetup
from tests.faults.faulty_library import FaultyLibrary, with_function
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault

Function = Callable[..., Any]


def _calling(change: Callable[[Function], Function]) -> Mutant:
    return Mutant(library=FaultyLibrary(handler=lambda handler, path: with_function(handler, change)))


def _takes_for_the_end(*errors: type[BaseException]) -> Callable[[Function], Function]:
    """Some exceptions of a handler are taken for its normal end."""

    def change(function: Function) -> Function:
        if inspect.isasyncgenfunction(function):

            async def generator(request: Any, context: Any) -> Any:
                try:
                    async for item in function(request, context):
                        yield item
                except errors:
                    return

            return generator

        async def coroutine(request: Any, context: Any) -> Any:
            try:
                return await function(request, context)
            except errors:
                return b""

        return coroutine if inspect.iscoroutinefunction(function) else function

    return change


def _cancels_what_it_started(function: Function) -> Function:
    if not inspect.iscoroutinefunction(function):
        return function

    async def around(request: Any, context: Any) -> Any:
        before = asyncio.all_tasks()
        try:
            return await function(request, context)
        finally:
            for task in asyncio.all_tasks() - before:
                task.cancel()

    return around


def _loses_one_in_a_thousand(function: Function) -> Function:
    if not inspect.isasyncgenfunction(function):
        return function

    async def around(request: Any, context: Any) -> Any:
        number = 0
        async for item in function(request, context):
            number += 1
            if number % 1000:
                yield item

    return around


_LEFT: list[Any] = []


def _leaves_generators_open(function: Function) -> Function:
    """Takes each item in a task of its own, which nobody cancels; the generator is kept and never closed."""
    if not inspect.isasyncgenfunction(function):
        return function

    async def around(request: Any, context: Any) -> Any:
        generator = function(request, context)
        _LEFT.append(generator)
        while True:
            try:
                yield await asyncio.shield(asyncio.ensure_future(anext(generator)))
            except StopAsyncIteration:
                return

    return around


def _without_limit(setup: ServerSetup) -> ServerSetup:
    kept = {name: value for name, value in setup.arguments.items() if name != "maximum_concurrent_rpcs"}
    return dataclasses.replace(setup, arguments=kept)


def _no_sync_call_beside_streams() -> Callable[[Function], Function]:
    """A sync stream never gives its thread back, and a sync call that finds none is lost."""
    running: list[object] = []

    def change(function: Function) -> Function:
        if inspect.isgeneratorfunction(function):

            def stream(request: Any, context: Any) -> Any:
                running.append(request)
                yield from function(request, context)

            return stream
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            return function

        async def refused(request: Any, context: Any) -> Any:
            if running:
                raise RuntimeError("no thread is free")
            return function(request, context)

        return refused

    return change


as_grpcio_hangs = Mutant(library=FaultyLibrary())
"""grpcio itself leaves these calls open, so that no planted fault can be told from its own deviation."""
takes_library_errors_for_the_end = _calling(_takes_for_the_end(StopAsyncIteration, NotImplementedError))
swallows_exits = _calling(_takes_for_the_end(SystemExit, KeyboardInterrupt))
cancels_what_a_handler_started = _calling(_cancels_what_it_started)
loses_one_message_in_a_thousand = _calling(_loses_one_in_a_thousand)
leaves_generators_open = _calling(_leaves_generators_open)
forgets_the_limit_of_calls = Mutant(library=FaultyLibrary(setup=_without_limit))
loses_sync_calls_beside_streams = _calling(_no_sync_call_beside_streams())

FAULTS = (
    Fault(
        "as_grpcio_hangs",
        caught_by={
            "grpc_handler_endings/cancelled_error_that_nobody_asked_for_ends_the_call": "GRPC-HND-12",
            "grpc_handler_endings/generator_exit_of_a_coroutine_ends_its_call_only": "GRPC-HND-14",
            "grpc_interceptors/cancelled_error_in_an_interceptor_ends_the_call": "GRPC-INT-04",
        },
        protocols=WIRE,
    ),
    Fault(
        "takes_library_errors_for_the_end",
        caught_by={"grpc_handler_endings/library_exception_ends_the_call_unknown": "GRPC-HND-13"},
        protocols=WIRE,
    ),
    Fault(
        "swallows_exits",
        caught_by={"grpc_handler_endings/exit_raised_by_a_handler_reaches_the_loop": "GRPC-HND-15"},
        protocols=WIRE,
    ),
    Fault(
        "cancels_what_a_handler_started",
        caught_by={"grpc_handler_endings/background_task_outlives_its_call": "GRPC-HND-20"},
        protocols=WIRE,
    ),
    Fault(
        "loses_one_message_in_a_thousand",
        caught_by={"grpc_handler_endings/many_small_messages_come_complete_and_in_order": "GRPC-HND-21"},
        protocols=WIRE,
    ),
    Fault(
        "leaves_generators_open",
        caught_by={
            "grpc_handler_endings/finally_of_a_cancelled_generator_completes": "GRPC-HND-22",
            "grpc_handler_endings/generator_that_waits_for_window_is_closed_when_the_client_leaves": "GRPC-HND-22",
        },
        protocols=WIRE,
    ),
    Fault(
        "forgets_the_limit_of_calls",
        caught_by={"grpc_handler_endings/calls_beyond_the_limit_are_refused_until_one_ends": "GRPC-HND-23"},
        protocols=WIRE,
    ),
    Fault(
        "loses_sync_calls_beside_streams",
        caught_by={"grpc_handler_endings/sync_call_is_served_beside_slow_sync_streams": "GRPC-HND-24"},
        protocols=WIRE,
    ),
)
