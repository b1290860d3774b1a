"""Faults in how interceptors are called, and in what becomes of what they return."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import grpc
import grpc.aio

from pytest_grpc_conformance.servers.base import ServerSetup
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault

Around = Callable[[Any, Any, Any], Awaitable[Any]]
KINDS = ("unary_unary", "unary_stream", "stream_unary", "stream_stream")


class _Wrapped(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]
    def __init__(self, inner: Any, around: Around) -> None:
        self._inner = inner
        self._around = around

    async def intercept_service(self, continuation: Any, handler_call_details: Any) -> Any:
        return await self._around(self._inner, continuation, handler_call_details)


def _wrapping(around: Around) -> Mutant:
    """A library that calls interceptors in a faulty way: a function of ``(interceptor, continuation, details)``."""

    def change(setup: ServerSetup) -> ServerSetup:
        return dataclasses.replace(setup, interceptors=[_Wrapped(inner, around) for inner in setup.interceptors])

    return Mutant(library=FaultyLibrary(setup=change))


def _aborting(code: grpc.StatusCode, details: str) -> Any:
    async def aborts(request: Any, context: Any) -> Any:
        await context.abort(code, details)

    return grpc.unary_unary_rpc_method_handler(aborts)


async def _metadata_as_pairs(inner: Any, continuation: Any, details: Any) -> Any:
    shown = SimpleNamespace(method=details.method.lstrip("/"), invocation_metadata=details.invocation_metadata)

    async def with_its_own(given: Any) -> Any:
        return await continuation(details)

    return await inner.intercept_service(with_its_own, shown)


async def _none_is_not_found(inner: Any, continuation: Any, details: Any) -> Any:
    found = await inner.intercept_service(continuation, details)
    return _aborting(grpc.StatusCode.NOT_FOUND, "Method not found!") if found is None else found


async def _errors_are_internal(inner: Any, continuation: Any, details: Any) -> Any:
    try:
        return await inner.intercept_service(continuation, details)
    except Exception as error:
        return _aborting(grpc.StatusCode.INTERNAL, str(error))


async def _kind_must_fit(inner: Any, continuation: Any, details: Any) -> Any:
    found = await inner.intercept_service(continuation, details)
    registered = await continuation(details)
    if [bool(getattr(found, kind)) for kind in KINDS] != [bool(getattr(registered, kind)) for kind in KINDS]:
        raise TypeError("a handler of another kind")
    return found


async def _goes_on_without_a_handler(inner: Any, continuation: Any, details: Any) -> Any:
    found = await inner.intercept_service(continuation, details)
    return found if hasattr(found, "unary_unary") else await continuation(details)


async def _continues_once(inner: Any, continuation: Any, details: Any) -> Any:
    calls: list[Any] = []

    async def once(given: Any) -> Any:
        if calls:
            raise RuntimeError("continuation was called twice")
        calls.append(given)
        return await continuation(given)

    return await inner.intercept_service(once, details)


async def _keeps_its_details(inner: Any, continuation: Any, details: Any) -> Any:
    async def with_its_own(given: Any) -> Any:
        return await continuation(details)

    return await inner.intercept_service(with_its_own, details)


async def _dies_without_details(inner: Any, continuation: Any, details: Any) -> Any:
    async def careless(given: Any) -> Any:
        if given is None:
            os._exit(3)
        return await continuation(given)

    return await inner.intercept_service(careless, details)


def _reversed(setup: ServerSetup) -> ServerSetup:
    return dataclasses.replace(setup, interceptors=list(reversed(setup.interceptors)))


def _ignored(setup: ServerSetup) -> ServerSetup:
    return dataclasses.replace(setup, interceptors=[])


def _left_out(setup: ServerSetup) -> ServerSetup:
    """What is no interceptor is left out in silence."""
    kept = [one for one in setup.interceptors if isinstance(one, grpc.aio.ServerInterceptor)]
    return dataclasses.replace(setup, interceptors=kept)


runs_interceptors_in_reverse = Mutant(library=FaultyLibrary(setup=_reversed))
ignores_interceptors = Mutant(library=FaultyLibrary(setup=_ignored))
shows_another_path = _wrapping(_metadata_as_pairs)
takes_none_for_not_found = _wrapping(_none_is_not_found)
takes_exceptions_for_internal = _wrapping(_errors_are_internal)
wants_the_registered_kind = _wrapping(_kind_must_fit)
goes_on_without_a_handler = _wrapping(_goes_on_without_a_handler)
continues_once_only = _wrapping(_continues_once)
keeps_the_details_it_had = _wrapping(_keeps_its_details)
dies_without_details = _wrapping(_dies_without_details)
leaves_out_what_is_no_interceptor = Mutant(library=FaultyLibrary(setup=_left_out))

FAULTS = (
    Fault(
        "runs_interceptors_in_reverse",
        caught_by={"grpc_interceptors/interceptors_run_once_in_order": "GRPC-INT-01"},
        protocols=WIRE,
    ),
    Fault(
        "ignores_interceptors",
        caught_by={
            "grpc_interceptors/wrapped_unary_handler_serves": "GRPC-INT-07",
            "grpc_interceptors/wrapped_streaming_handler_serves": "GRPC-INT-07",
            "grpc_interceptors/denial_needs_no_request_body": "GRPC-INT-12",
        },
        protocols=WIRE,
    ),
    Fault(
        "shows_another_path",
        caught_by={"grpc_interceptors/call_details_are_path_and_metadata": "GRPC-INT-02"},
        protocols=WIRE,
    ),
    Fault(
        "takes_none_for_not_found",
        caught_by={"grpc_interceptors/interceptor_that_returns_none_is_unimplemented": "GRPC-INT-03"},
        protocols=WIRE,
    ),
    Fault(
        "takes_exceptions_for_internal",
        caught_by={"grpc_interceptors/exception_in_an_interceptor_is_unknown": "GRPC-INT-04"},
        protocols=WIRE,
    ),
    Fault(
        "wants_the_registered_kind",
        caught_by={"grpc_interceptors/returned_handler_runs_by_its_own_kind": "GRPC-INT-05"},
        protocols=WIRE,
    ),
    Fault(
        "goes_on_without_a_handler",
        caught_by={"grpc_interceptors/interceptor_that_returns_no_handler_is_unknown": "GRPC-INT-06"},
        protocols=WIRE,
    ),
    Fault(
        "continues_once_only",
        caught_by={"grpc_interceptors/continuation_may_be_called_twice": "GRPC-INT-08"},
        protocols=WIRE,
    ),
    Fault(
        "keeps_the_details_it_had",
        caught_by={"grpc_interceptors/altered_call_details_are_not_ignored": "GRPC-INT-09"},
        protocols=WIRE,
    ),
    Fault(
        "dies_without_details",
        caught_by={"grpc_interceptors/continuation_without_details_harms_nobody": "GRPC-INT-10"},
        protocols=WIRE,
    ),
    Fault(
        "leaves_out_what_is_no_interceptor",
        caught_by={"grpc_interceptors/constructor_refuses_what_is_no_interceptor": "GRPC-INT-11"},
        protocols=WIRE,
    ),
)
