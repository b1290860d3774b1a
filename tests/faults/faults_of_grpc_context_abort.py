"""Faults of the servicer context's ``abort``."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
import grpc.aio

from tests.faults.faulty_library import FaultyContext, FaultyLibrary
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class AbortErrorOfItsOwn(FaultyContext):
    async def abort(self, *arguments: Any) -> None:
        try:
            await self._real.abort(*arguments)
        except grpc.aio.AbortError as error:
            raise RuntimeError("Call aborted.") from error


class AbortAtTheEnd(FaultyContext):
    """``abort`` notes the status, which goes out once the handler has ended."""

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self._real.set_code(code)
        self._real.set_details(details)
        self._real.set_trailing_metadata(trailing_metadata)
        raise grpc.aio.AbortError("Locally aborted.")


class AbortForgetsDetails(FaultyContext):
    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self._real.set_details(details)
        await self._real.abort(code, details, trailing_metadata)


class AbortInTheHandlersTaskOnly(FaultyContext):
    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self._task = asyncio.current_task()

    async def abort(self, *arguments: Any) -> None:
        if asyncio.current_task() is not self._task:
            raise RuntimeError("abort() outside of the handler's task")
        await self._real.abort(*arguments)


class AbortWithOkReturns(FaultyContext):
    async def abort(self, code: Any, *arguments: Any) -> None:
        if code is not grpc.StatusCode.OK:
            await self._real.abort(code, *arguments)


class AbortWithOkWaits(FaultyContext):
    """``abort(OK)`` never returns. grpcio leaves such a call open as well, but raises to the handler first."""

    async def abort(self, code: Any, *arguments: Any) -> None:
        if code is grpc.StatusCode.OK:
            await asyncio.Event().wait()
        await self._real.abort(code, *arguments)


class AbortWithStatusDropsMetadata(FaultyContext):
    async def abort_with_status(self, status: Any) -> None:
        await self._real.abort(status.code, status.details)


class AbortTakesTuplesOnly(FaultyContext):
    """Metadata in another sequence is dropped without a word."""

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        metadata = trailing_metadata if isinstance(trailing_metadata, tuple) else ()
        await self._real.abort(code, details, metadata)


abort_error_of_its_own = Mutant(library=FaultyLibrary(context=AbortErrorOfItsOwn))
abort_at_the_end = Mutant(library=FaultyLibrary(context=AbortAtTheEnd))
abort_forgets_details = Mutant(library=FaultyLibrary(context=AbortForgetsDetails))
abort_in_the_handlers_task_only = Mutant(library=FaultyLibrary(context=AbortInTheHandlersTaskOnly))
abort_with_ok_returns = Mutant(library=FaultyLibrary(context=AbortWithOkReturns))
abort_with_ok_waits = Mutant(library=FaultyLibrary(context=AbortWithOkWaits))
abort_with_status_drops_metadata = Mutant(library=FaultyLibrary(context=AbortWithStatusDropsMetadata))
abort_takes_tuples_only = Mutant(library=FaultyLibrary(context=AbortTakesTuplesOnly))


def _fault(mutant: str, **rows: str) -> Fault:
    caught_by = {f"grpc_context_abort/{name}": row for name, row in rows.items()}
    return Fault(mutant, caught_by=caught_by, protocols=WIRE)


FAULTS = (
    _fault("abort_error_of_its_own", abort_raises_abort_error="GRPC-CTX-17"),
    _fault(
        "abort_at_the_end",
        abort_is_sent_before_the_handler_ends="GRPC-CTX-17",
        status_of_abort_is_final="GRPC-CTX-18",
        no_message_after_abort="GRPC-CTX-18",
        second_abort_is_a_usage_error="GRPC-CTX-19",
    ),
    _fault("abort_forgets_details", details_of_abort_or_set_before="GRPC-CTX-20"),
    _fault("abort_in_the_handlers_task_only", abort_in_a_child_task="GRPC-CTX-21"),
    _fault("abort_with_ok_returns", abort_with_ok_raises="GRPC-CTX-22"),
    _fault("abort_with_ok_waits", abort_with_ok_ends_the_call="GRPC-CTX-22"),
    _fault("abort_with_status_drops_metadata", abort_with_status_uses_all_of_it="GRPC-CTX-23"),
    _fault("abort_takes_tuples_only", abort_with_other_sequences="GRPC-CTX-24"),
)
