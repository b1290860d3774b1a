"""Faults when a client leaves: the engine is not told, told twice, told of others, or the id stays taken."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from pytest_grpc_conformance.engines.gated import GatedEngine, GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.producer import Run
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

LEFT = (asyncio.CancelledError, GeneratorExit)
"""What a handler sees when its client has left: at an ``await``, and at a ``yield``."""


class HandingEngine(GatedEngine):
    """An engine that tells a fault which handles it gave out, oldest first."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.handles: list[GatedGeneration] = []

    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> GatedGeneration:
        generation = super().submit(request_id, prompt, parameters)
        self.handles.append(generation)
        return generation


def handles_of(engine: GatedEngine) -> list[GatedGeneration]:
    assert isinstance(engine, HandingEngine)
    return engine.handles


def deaf(when: Callable[[Run], bool]) -> type[GatedEngine]:
    """An engine that some aborts do not reach, as with a servicer that does not pass them on."""

    class Deaf(GatedEngine):
        def _abort(self, run: Run) -> None:
            if not when(run):
                super()._abort(run)

    return Deaf


not_told_after_tokens = Mutant(engine=deaf(lambda run: run.gate.taken > 0))
not_told_in_silence = Mutant(engine=deaf(lambda run: run.gate.taken == 0))


def _several(run: Run) -> bool:
    return run.gate.generation is not None and len(run.gate.generation.sequences) > 1


not_told_of_several_sequences = Mutant(engine=deaf(_several))


class _ToldTwice(GatedEngine):
    def _abort(self, run: Run) -> None:
        super()._abort(run)
        super()._abort(run)


aborts_twice = Mutant(engine=_ToldTwice)


class _ToldTwiceOfLongStreams(GatedEngine):
    def _abort(self, run: Run) -> None:
        for _ in range(2 if _long(run) else 1):
            super()._abort(run)


def _long(run: Run) -> bool:
    return run.gate.taken > 20


not_told_after_many_tokens = Mutant(engine=deaf(_long))
aborts_twice_after_many_tokens = Mutant(engine=_ToldTwiceOfLongStreams)


async def _abort_at_the_end(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    try:
        async for message in messages:
            yield message
    finally:
        for handle in handles_of(call.engine):
            if handle.request_id == call.request.request_id:
                handle.abort()


aborts_what_is_over = Mutant(generate=_abort_at_the_end, engine=HandingEngine)


async def _abort_all(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    try:
        async for message in messages:
            yield message
    except LEFT:
        for handle in handles_of(call.engine):
            handle.abort()
        raise


cancels_every_stream = Mutant(generate=_abort_all, engine=HandingEngine)


async def _once_only(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    # The engine outlives the servers of a case, so the memory is there.
    used: set[str] = call.engine.__dict__.setdefault("used", set())
    if call.request.request_id in used:
        await call.context.abort(grpc.StatusCode.ALREADY_EXISTS, "this id was used before")
    used.add(call.request.request_id)
    async for message in messages:
        yield message


never_frees_an_id = Mutant(generate=_once_only)

FAULTS = (
    Fault(
        "not_told_after_tokens",
        "F095",
        caught_by={
            "cancel/cancel_stops_the_engine": "OE-GEN-035 SMG-GEN-019",
            "slow_reader/cancel_of_an_unread_stream_stops_the_engine": "GRPC-CAN-05 OE-GEN-035 SMG-GEN-019",
            "slow_reader/deadline_of_an_unread_stream_stops_the_engine": "GRPC-FAIR-02",
            "slow_reader/slow_readers_that_leave_take_their_streams_along": "GRPC-FAIR-09",
            "lifecycle/stop_stops_the_engine": "GRPC-LIFE-26 OE-GEN-035 SMG-GEN-019",
        },
    ),
    Fault(
        "not_told_in_silence",
        "F096",
        caught_by={
            "cancel/cancel_stops_the_engine": "OE-GEN-035 SMG-GEN-019",
            "cancel/lost_connection_stops_the_engine": "GRPC-CAN-02 OE-GEN-035 SMG-GEN-019",
            "deadline/deadline_in_silence_stops_the_engine": "OE-GEN-035 SMG-GEN-019",
            "request_id/engine_is_empty_at_rest": "OE-GEN-035 SMG-GEN-019",
        },
    ),
    Fault(
        "not_told_of_several_sequences",
        "F094",
        caught_by={"cancel/cancel_stops_every_sequence": "OE-GEN-035 SMG-GEN-019"},
    ),
    Fault(
        "aborts_twice",
        caught_by={
            "cancel/cancel_aborts_once": "OE-ERR-026 SMG-GEN-019",
            "cancel/lost_connection_aborts_once": "OE-ERR-026 SMG-GEN-019",
            "deadline/deadline_in_silence_stops_the_engine": "OE-ERR-026 SMG-GEN-019",
            "abort/cancel_after_an_abort_is_harmless": "OE-ERR-026 SMG-ABT-006",
        },
    ),
    Fault(
        "not_told_after_many_tokens",
        "F095",
        caught_by={"cancel/cancel_aborts_once": "OE-ERR-026 SMG-GEN-019"},
    ),
    Fault(
        "aborts_twice_after_many_tokens",
        caught_by={
            "cancel/cancel_aborts_once": "OE-ERR-026 SMG-GEN-019",
            "abort/second_abort_stays_out_of_the_engine": "OE-ERR-026 SMG-ABT-005",
        },
    ),
    Fault(
        "aborts_what_is_over",
        "F099",
        caught_by={"cancel/cancel_after_the_end_does_not_abort": "OE-ERR-026 SMG-GEN-019"},
    ),
    Fault(
        "cancels_every_stream",
        caught_by={
            "cancel/cancel_leaves_other_streams_alone": "GRPC-CAN-01",
            "cancel/cancel_of_many_leaves_other_streams_alone": "GRPC-CAN-12",
            "cancel/lost_connection_ends_all_its_calls": "GRPC-CAN-02",
        },
    ),
    Fault(
        "never_frees_an_id",
        "F119",
        caught_by={
            "cancel/cancel_frees_the_id": "OE-GEN-027 SMG-GEN-010",
            "cancel/lost_connection_frees_the_id": "OE-GEN-027 SMG-GEN-010",
            "deadline/deadline_frees_the_id": "OE-GEN-027 SMG-GEN-010",
            "request_id/id_can_be_used_again": "OE-GEN-027 SMG-GEN-010",
            "request_id/id_can_be_used_again_elsewhere": "OE-GEN-027 SMG-GEN-010",
            "lifecycle/new_server_knows_nothing_of_the_old_ones_requests": "OE-GEN-027 SMG-GEN-010",
            "black_box/id_can_be_used_again_after_the_end": "OE-GEN-027 SMG-GEN-010",
            "black_box/id_can_be_used_again_after_a_cancel": "OE-GEN-027 SMG-GEN-010",
        },
    ),
)
