"""Faults in what a status is made of: a handler's calls and exceptions, and the server's own refusals."""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc
import grpc.aio

from tests.faults.faults_of_grpc_status import TrailersFault
from tests.faults.faulty_library import FaultyContext, FaultyLibrary, with_function
from tests.faults.frame_proxy import Passing
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault

Reaction = Callable[[Exception, Any], Awaitable[None]]


class NoDetails(FaultyContext):
    def set_details(self, details: Any) -> None:
        pass


class DetailsMakeErrors(FaultyContext):
    def set_details(self, details: Any) -> None:
        self._real.set_details(details)
        if self._real.code() in (None, grpc.StatusCode.OK):
            self._real.set_code(grpc.StatusCode.UNKNOWN)


class CodesChanged(FaultyContext):
    """A context that changes codes before it takes them."""

    def taken(self, code: Any) -> Any:
        raise NotImplementedError

    def set_code(self, code: Any) -> None:
        self._real.set_code(self.taken(code))

    async def abort(self, code: Any, *arguments: Any) -> None:
        await self._real.abort(self.taken(code), *arguments)


class CodesOnly(CodesChanged):
    def taken(self, code: Any) -> Any:
        return code if isinstance(code, grpc.StatusCode) else grpc.StatusCode.UNKNOWN


class CodesByName(CodesChanged):
    def taken(self, code: Any) -> Any:
        return grpc.StatusCode[code] if isinstance(code, str) else code


class NoneIsNoCode(FaultyContext):
    def set_code(self, code: Any) -> None:
        if code is not None:
            self._real.set_code(code)


class NoCode(FaultyContext):
    def set_code(self, code: Any) -> None:
        pass


class AnyDetails(FaultyContext):
    def set_details(self, details: Any) -> None:
        self._real.set_details(str(details))

    async def abort(self, code: Any, details: Any = "", *arguments: Any) -> None:
        await self._real.abort(code, str(details), *arguments)


class BlamesTheClient(FaultyContext):
    """What cannot be encoded becomes INVALID_ARGUMENT, where grpcio leaves the call open (a declared deviation)."""

    def set_details(self, details: str) -> None:
        if not _encodes(details):
            self._real.set_code(grpc.StatusCode.INVALID_ARGUMENT)
        else:
            self._real.set_details(details)

    async def abort(self, code: Any, details: str = "", *arguments: Any) -> None:
        if not _encodes(details):
            await self._real.abort(grpc.StatusCode.INVALID_ARGUMENT)
        await self._real.abort(code, details, *arguments)


def _encodes(text: str) -> bool:
    try:
        text.encode()
    except UnicodeError:
        return False
    return True


def reacting(reaction: Reaction) -> Callable[[Any, str], Any]:
    """A change of handlers: ``reaction`` comes before an escaping exception goes on, unless it ends the call."""

    def change(function: Any) -> Any:
        if inspect.isasyncgenfunction(function):

            @functools.wraps(function)
            async def generator(request: Any, context: Any) -> Any:
                try:
                    async for response in function(request, context):
                        yield response
                except grpc.aio.AbortError:
                    raise
                except Exception as error:
                    await reaction(error, context)
                    raise

            return generator

        @functools.wraps(function)
        async def coroutine(request: Any, context: Any) -> Any:
            try:
                return await function(request, context)
            except grpc.aio.AbortError:
                raise
            except Exception as error:
                await reaction(error, context)
                raise

        return coroutine

    return lambda handler, path: with_function(handler, change)


async def _becomes_internal(error: Exception, context: Any) -> None:
    await context.abort(grpc.StatusCode.INTERNAL, f"Unexpected {type(error)}: {error}")


async def _forgets_the_code(error: Exception, context: Any) -> None:
    await context.abort(grpc.StatusCode.UNKNOWN, f"Unexpected {type(error)}: {error}")


async def _drops_the_metadata(error: Exception, context: Any) -> None:
    context.set_trailing_metadata(())


def _swallowed(handler: Any, path: str) -> Any:
    """An exception in a unary handler ends its call with OK and nothing (grpcio leaves such calls open whose
    exception has no usable text, a declared deviation)."""

    def change(function: Any) -> Any:
        @functools.wraps(function)
        async def coroutine(request: Any, context: Any) -> Any:
            try:
                return await function(request, context)
            except Exception:
                return b""

        return coroutine

    return with_function(handler, change)


class BlamesTheRequest(TrailersFault):
    def trailers(self, passing: Passing, fields: dict[bytes, bytes]) -> Sequence[Passing]:
        own = fields[b"grpc-status"] in (b"2", b"8", b"12", b"13")
        return [passing.with_field("grpc-status", "3") if own else passing]


class Stopping:
    """A stop that goes on serving until the running calls are over, and tells new ones INTERNAL."""

    def __init__(self) -> None:
        self.begun = False
        self.idle = asyncio.Event()
        self.running = 0

    def wrap(self, native: Any) -> Any:
        self.begun = False
        self.idle = asyncio.Event()
        return _SlowToStop(native, self)

    def change(self, handler: Any, path: str) -> Any:
        def changed(function: Any) -> Any:
            if not inspect.isasyncgenfunction(function):

                @functools.wraps(function)
                async def refused(request: Any, context: Any) -> Any:
                    if self.begun:
                        await context.abort(grpc.StatusCode.INTERNAL, "the server has been stopped")
                    return await function(request, context)

                return refused

            @functools.wraps(function)
            async def counted(request: Any, context: Any) -> Any:
                self.running += 1
                try:
                    async for response in function(request, context):
                        yield response
                finally:
                    self.running -= 1
                    self.idle.set()

            return counted

        return with_function(handler, changed)


class _SlowToStop:
    def __init__(self, native: Any, stopping: Stopping) -> None:
        self._native = native
        self._stopping = stopping

    def __getattr__(self, name: str) -> Any:
        return getattr(self._native, name)

    async def stop(self, grace: float | None) -> None:
        self._stopping.begun = True
        if grace and self._stopping.running:
            await self._stopping.idle.wait()
        await self._native.stop(grace)


_stopping = Stopping()

set_details_ignored = Mutant(library=FaultyLibrary(context=NoDetails))
details_make_errors = Mutant(library=FaultyLibrary(context=DetailsMakeErrors))
integers_are_no_codes = Mutant(library=FaultyLibrary(context=CodesOnly))
codes_by_name = Mutant(library=FaultyLibrary(context=CodesByName))
none_is_no_code = Mutant(library=FaultyLibrary(context=NoneIsNoCode))
set_code_ignored = Mutant(library=FaultyLibrary(context=NoCode))
any_details = Mutant(library=FaultyLibrary(context=AnyDetails))
blames_the_client = Mutant(library=FaultyLibrary(context=BlamesTheClient))
exception_is_internal = Mutant(library=FaultyLibrary(handler=reacting(_becomes_internal)))
exception_forgets_the_code = Mutant(library=FaultyLibrary(handler=reacting(_forgets_the_code)))
exception_drops_the_metadata = Mutant(library=FaultyLibrary(handler=reacting(_drops_the_metadata)))
exception_swallowed = Mutant(library=FaultyLibrary(handler=_swallowed))
blames_the_request = Mutant(library=FaultyLibrary(frames=BlamesTheRequest))
stopping_is_internal = Mutant(library=FaultyLibrary(handler=_stopping.change, native=_stopping.wrap))

CAUGHT = {
    "set_details_ignored": {"set_code_and_return": "GRPC-STATUS-14", "codes_that_are_none": "GRPC-STATUS-17"},
    "details_make_errors": {"set_code_ok_with_details": "GRPC-STATUS-15"},
    "integers_are_no_codes": {"integer_codes": "GRPC-STATUS-16"},
    "codes_by_name": {"codes_that_are_none": "GRPC-STATUS-17"},
    "none_is_no_code": {"set_code_none": "GRPC-STATUS-18"},
    "set_code_ignored": {
        "set_code_and_return": "GRPC-STATUS-14",
        "generated_base_method": "GRPC-STATUS-25",
    },
    "any_details": {"details_of_another_type": "GRPC-STATUS-24"},
    "blames_the_client": {"details_that_cannot_be_encoded": "GRPC-STATUS-23"},
    "exception_is_internal": {"escaping_exception_is_unknown": "GRPC-STATUS-19"},
    "exception_forgets_the_code": {"exception_after_set_code": "GRPC-STATUS-20"},
    "exception_drops_the_metadata": {"trailing_metadata_with_exception": "GRPC-STATUS-21"},
    "exception_swallowed": {"exception_without_usable_text": "GRPC-STATUS-22"},
    "blames_the_request": {"codes_of_applications": "GRPC-STATUS-26"},
    "stopping_is_internal": {
        "call_to_a_stopping_server": "GRPC-STATUS-27",
        "connection_to_a_stopping_server": "GRPC-STATUS-27",
    },
}
FAULTS = tuple(
    Fault(
        mutant,
        caught_by={f"grpc_status_origins/{function}": rows for function, rows in caught.items()},
        protocols=WIRE,
    )
    for mutant, caught in CAUGHT.items()
)
