"""Faults of done-callbacks, of the servicer context after the end of its call, and of the sync context."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import grpc.aio

from tests.faults.faulty_library import FaultyContext, FaultyLibrary
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class NeverDone(FaultyContext):
    def done(self) -> bool:
        return False


class CallbacksInReverse(FaultyContext):
    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self._callbacks: list[Callable[[Any], None]] = []

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if not self._callbacks:
            self._real.add_done_callback(self._call)
        self._callbacks.append(callback)

    def _call(self, real: Any) -> None:
        for callback in reversed(self._callbacks):
            callback(self)


class SilentCallbacks(FaultyContext):
    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        def call(context: Any) -> None:
            with contextlib.suppress(Exception):
                callback(context)

        self._real.add_done_callback(call)


class NoCallbacksAfterTheEnd(FaultyContext):
    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        if self._real.done():
            raise RuntimeError("the call is over")
        self._real.add_done_callback(callback)


class LateUseIgnored(FaultyContext):
    async def read(self) -> Any:
        return None if self._real.done() else await self._real.read()

    async def write(self, message: Any) -> None:
        if not self._real.done():
            await self._real.write(message)

    async def send_initial_metadata(self, metadata: Any) -> None:
        if not self._real.done():
            await self._real.send_initial_metadata(metadata)


class LateSettersRaise(FaultyContext):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("set_") and self._real.done():
            raise grpc.aio.UsageError("the call is over")
        return getattr(self._real, name)


class NoDeadlineInSyncHandlers(FaultyContext):
    def __getattr__(self, name: str) -> Any:
        if name == "time_remaining":
            raise AttributeError(name)
        return getattr(self._real, name)


class SyncAbortReturns(FaultyContext):
    def abort(self, *arguments: Any) -> None:
        with contextlib.suppress(grpc.aio.AbortError):
            self._real.abort(*arguments)


class SyncCallbacksForgotten(FaultyContext):
    def add_callback(self, callback: Callable[[], None]) -> bool:
        return True


never_done = Mutant(library=FaultyLibrary(context=NeverDone))
callbacks_in_reverse = Mutant(library=FaultyLibrary(context=CallbacksInReverse))
silent_callbacks = Mutant(library=FaultyLibrary(context=SilentCallbacks))
no_callbacks_after_the_end = Mutant(library=FaultyLibrary(context=NoCallbacksAfterTheEnd))
late_use_ignored = Mutant(library=FaultyLibrary(context=LateUseIgnored))
late_setters_raise = Mutant(library=FaultyLibrary(context=LateSettersRaise))
no_deadline_in_sync_handlers = Mutant(library=FaultyLibrary(context=NoDeadlineInSyncHandlers))
sync_abort_returns = Mutant(library=FaultyLibrary(context=SyncAbortReturns))
sync_callbacks_forgotten = Mutant(library=FaultyLibrary(context=SyncCallbacksForgotten))


def _fault(mutant: str, row: str, *functions: str) -> Fault:
    return Fault(mutant, caught_by={f"grpc_context_end/{name}": row for name in functions}, protocols=WIRE)


FAULTS = (
    _fault("never_done", "GRPC-CTX-25", "done_in_callback", "done_after_abort"),
    _fault("callbacks_in_reverse", "GRPC-CTX-26", "done_callbacks"),
    _fault("silent_callbacks", "GRPC-CTX-27", "done_callback_that_raises"),
    _fault("no_callbacks_after_the_end", "GRPC-CTX-28", "done_callback_added_after_the_end"),
    _fault("late_use_ignored", "GRPC-CTX-29", "use_after_the_end"),
    _fault("late_setters_raise", "GRPC-CTX-30", "setters_after_the_end"),
    _fault("no_deadline_in_sync_handlers", "GRPC-CTX-31", "sync_context_has_these_methods"),
    _fault("sync_abort_returns", "GRPC-CTX-32", "sync_abort_raises"),
    _fault(
        "sync_callbacks_forgotten",
        "GRPC-CTX-33",
        "sync_callbacks_run_before_the_response",
        "sync_callback_that_raises",
    ),
)
