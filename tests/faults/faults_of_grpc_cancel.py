"""Faults of cancellation: what ends a call, what it ends with it, and what handlers are told."""

from __future__ import annotations

import asyncio
import functools
import inspect
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from pytest_grpc_conformance.wire.frames import Flag, Kind, frame, message
from tests.faults.faulty_library import FaultyContext, FaultyLibrary, with_function
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.request_fault import cancelled_again, thrown_as
from tests.faults.table import WIRE, Fault

RESETS = 20
"""Streams that a client may reset on one connection before a nervous server has had enough."""


class OnlyCancelResets(FrameFault):
    """RST_STREAM with another code than CANCEL is passed over."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        other = passing.kind == Kind.RST_STREAM and passing.payload != struct.pack(">I", 8)
        return [] if other else [passing]


class ResetsAreIgnored(FrameFault):
    def from_client(self, passing: Passing) -> Sequence[Passing]:
        return [] if passing.kind == Kind.RST_STREAM else [passing]


class ResetIsEndOfStream(FrameFault):
    """A reset is taken for the end of the requests, one of which there always is."""

    def __init__(self) -> None:
        self._with_data: set[int] = set()

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind == Kind.DATA:
            self._with_data.add(passing.stream)
        if passing.kind != Kind.RST_STREAM:
            return [passing]
        payload = b"" if passing.stream in self._with_data else message(b"")
        return [Passing(Kind.DATA, Flag.END_STREAM, passing.stream, payload)]


class _Closing(FrameFault):
    def connected(self, send_to_client: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self.send, self.close = send_to_client, close


class ResetEndsConnection(_Closing):
    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind == Kind.RST_STREAM:
            self.close()
        return [passing]


class GoawayEndsConnection(_Closing):
    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind == Kind.GOAWAY:
            self.close()
        return [passing]


class TooManyResets(_Closing):
    def __init__(self) -> None:
        self._resets = 0

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        self._resets += passing.kind == Kind.RST_STREAM
        if self._resets > RESETS:
            self.send(frame(Kind.GOAWAY, payload=struct.pack(">II", 0, 11) + b"too_many_resets"))
            self.close()
        return [passing]


class StaleStatus(FrameFault):
    """The stream after one that was reset gets another status."""

    def __init__(self) -> None:
        self._stale = False

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        self._stale = self._stale or passing.kind == Kind.RST_STREAM
        return [passing]

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if not (self._stale and passing.is_trailers):
            return [passing]
        self._stale = False
        return [passing.with_field("grpc-status", "15").with_field("grpc-message", "stale")]


class CallbackAtOnce(FaultyContext):
    def add_done_callback(self, callback: Any) -> None:
        callback(self._real)


class WriteNeverRaises(FaultyContext):
    async def write(self, written: Any) -> None:
        try:
            await self._real.write(written)
        except Exception:  # The fault: the handler is told that the message was sent.
            return


def _timeout_error(error: BaseException) -> BaseException:
    return TimeoutError() if isinstance(error, asyncio.CancelledError) else error


def _around(cancelled: Callable[[set[asyncio.Task[Any]]], None]) -> Callable[[Any, str], Any]:
    """A change of handlers without response streams: a function is called once such a handler was cancelled, with the
    tasks that have begun since its start, and what the handler raises then is lost."""

    def change(function: Any) -> Any:
        if not inspect.iscoroutinefunction(function):
            return function

        @functools.wraps(function)
        async def coroutine(request: Any, context: Any) -> Any:
            before = asyncio.all_tasks()
            running = asyncio.ensure_future(function(request, context))
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                running.cancel()
                cancelled(asyncio.all_tasks() - before - {running})
                await asyncio.wait([running])
                running.cancelled() or running.exception()
                raise

        return coroutine

    return lambda handler, path: with_function(handler, change)


def _cancel_all(tasks: set[asyncio.Task[Any]]) -> None:
    """Cancel the tasks of the case, and not those of the server."""
    for task in tasks:
        if "<locals>" in getattr(task.get_coro(), "__qualname__", ""):
            task.cancel()


LEFT: list[Any] = []
"""What faulty servers keep of calls that are over."""


def _leave_task(tasks: set[asyncio.Task[Any]]) -> None:
    LEFT.append(asyncio.ensure_future(asyncio.Event().wait()))


def _kept(function: Any) -> Any:
    """A generator function whose generators live on, as somebody still holds them."""
    if inspect.isasyncgenfunction(function):

        @functools.wraps(function)
        async def generator(request: Any, context: Any) -> Any:
            responses = function(request, context)
            LEFT.append(responses)
            async for response in responses:
                yield response

        return generator
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def plain(request: Any, context: Any) -> Iterator[Any]:
            responses = function(request, context)
            LEFT.append(responses)
            yield from iter(responses.__next__, None)

        return plain
    return function


only_cancel_resets = Mutant(library=FaultyLibrary(frames=OnlyCancelResets))
resets_are_ignored = Mutant(library=FaultyLibrary(frames=ResetsAreIgnored))
reset_is_end_of_stream = Mutant(library=FaultyLibrary(frames=ResetIsEndOfStream))
reset_ends_connection = Mutant(library=FaultyLibrary(frames=ResetEndsConnection))
goaway_ends_connection = Mutant(library=FaultyLibrary(frames=GoawayEndsConnection))
too_many_resets = Mutant(library=FaultyLibrary(frames=TooManyResets))
stale_status = Mutant(library=FaultyLibrary(frames=StaleStatus))
callback_at_once = Mutant(library=FaultyLibrary(context=CallbackAtOnce))
write_never_raises = Mutant(library=FaultyLibrary(context=WriteNeverRaises))
cancellation_is_timeout_error = Mutant(library=FaultyLibrary(handler=thrown_as(_timeout_error)))
cancellation_comes_again = Mutant(library=FaultyLibrary(handler=cancelled_again))
cancelled_error_is_lost = Mutant(library=FaultyLibrary(handler=_around(lambda tasks: None)))
cancellation_leaves_task = Mutant(library=FaultyLibrary(handler=_around(_leave_task)))
cancellation_ends_all_tasks = Mutant(library=FaultyLibrary(handler=_around(_cancel_all)))
generators_are_kept = Mutant(library=FaultyLibrary(handler=lambda handler, path: with_function(handler, _kept)))

CALLS = "grpc_cancel"
HANDLERS = "grpc_cancel_handlers"

# The cases of GRPC-CAN-06, 14 and 16 fail on grpcio as it is; on it their faults cannot be told from its own.
FAULTS = (
    Fault("only_cancel_resets", caught_by={f"{CALLS}/reset_ends_the_call": "GRPC-CAN-01"}, protocols=WIRE),
    Fault("resets_are_ignored", caught_by={f"{CALLS}/reset_while_the_loop_is_busy": "GRPC-CAN-17"}, protocols=WIRE),
    Fault(
        "reset_is_end_of_stream",
        caught_by={
            f"{CALLS}/reset_before_the_message": "GRPC-CAN-10",
            f"{HANDLERS}/broken_off_upload_is_no_whole_one": "GRPC-CAN-16",
        },
        protocols=WIRE,
    ),
    Fault(
        "reset_ends_connection",
        caught_by={
            f"{CALLS}/reset_ends_the_call": "GRPC-CAN-01",
            f"{CALLS}/reset_before_the_message": "GRPC-CAN-10",
            f"{CALLS}/burst_of_resets": "GRPC-CAN-11",
            f"{CALLS}/late_status_stays_off_other_streams": "GRPC-CAN-19",
            f"{HANDLERS}/swallowed_cancellation_does_no_harm": "GRPC-CAN-07",
            f"{HANDLERS}/exception_while_cancelled_is_logged": "GRPC-CAN-09",
        },
        protocols=WIRE,
    ),
    Fault("goaway_ends_connection", caught_by={f"{CALLS}/goaway_leaves_calls_alone": "GRPC-CAN-03"}, protocols=WIRE),
    Fault(
        "too_many_resets",
        caught_by={
            f"{CALLS}/burst_of_resets": "GRPC-CAN-11",
            f"{CALLS}/cancelled_calls_of_a_stock_client": "GRPC-CAN-12",
        },
        protocols=WIRE,
    ),
    Fault("stale_status", caught_by={f"{CALLS}/late_status_stays_off_other_streams": "GRPC-CAN-19"}, protocols=WIRE),
    Fault(
        "callback_at_once", caught_by={f"{HANDLERS}/done_callback_of_a_cancelled_call": "GRPC-CAN-06"}, protocols=WIRE
    ),
    Fault(
        "write_never_raises", caught_by={f"{HANDLERS}/write_after_cancellation_raises": "GRPC-CAN-08"}, protocols=WIRE
    ),
    Fault(
        "cancellation_is_timeout_error",
        caught_by={
            f"{CALLS}/lost_connection_cancels_its_calls": "GRPC-CAN-02",
            f"{HANDLERS}/cancellation_is_raised_at_the_await": "GRPC-CAN-04",
            f"{HANDLERS}/cancellation_reaches_request_streams": "GRPC-CAN-18",
        },
        protocols=WIRE,
    ),
    Fault(
        "cancellation_comes_again",
        caught_by={f"{HANDLERS}/cancellation_is_raised_at_the_await": "GRPC-CAN-04"},
        protocols=WIRE,
    ),
    Fault(
        "cancelled_error_is_lost",
        caught_by={f"{HANDLERS}/exception_while_cancelled_is_logged": "GRPC-CAN-09"},
        protocols=WIRE,
    ),
    Fault(
        "cancellation_leaves_task", caught_by={f"{CALLS}/cancelled_calls_leave_nothing": "GRPC-CAN-13"}, protocols=WIRE
    ),
    Fault(
        "cancellation_ends_all_tasks", caught_by={f"{HANDLERS}/shielded_work_survives": "GRPC-CAN-15"}, protocols=WIRE
    ),
    Fault(
        "generators_are_kept",
        caught_by={
            f"{HANDLERS}/generator_at_its_yield_is_closed": "GRPC-CAN-05",
            f"{HANDLERS}/sync_generator_is_closed": "GRPC-CAN-14",
        },
        protocols=WIRE,
    ),
)
