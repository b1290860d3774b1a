"""Faults with requests that wait for room in the engine: dropped, never taken out of the queue, their ids kept."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from pytest_grpc_conformance.engines.gated import GatedEngine, GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import has_tokens
from tests.faults.faults_of_abort import Method, on_abort
from tests.faults.faults_of_cancel import deaf
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


class _Impatient(GatedEngine):
    """An engine that gives up on what it cannot run at once, as with a servicer that waits too short a time."""

    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> GatedGeneration:
        generation = super().submit(request_id, prompt, parameters)
        if request_id in self.queued():
            generation.abort()
        return generation


drops_what_has_to_wait = Mutant(engine=_Impatient)
leaves_what_waits_in_the_queue = Mutant(engine=deaf(lambda run: not run.admitted))


async def _running_only(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    if request.WhichOneof("target") != "all_requests":
        return await method(request, context)
    answers = [await method(type(request)(request_id=name), context) for name in engine.in_flight()]
    return answers[0]


aborts_running_requests_only = Mutant(wrap=on_abort(_running_only))


async def _freed_by_a_token(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    taken: set[str] = call.engine.__dict__.setdefault("taken", set())
    if call.request.request_id in taken:
        await call.context.abort(grpc.StatusCode.ALREADY_EXISTS, "this id is active")
    taken.add(call.request.request_id)
    async for message in messages:
        if has_tokens(message):
            taken.discard(call.request.request_id)
        yield message


keeps_the_id_of_what_never_ran = Mutant(generate=_freed_by_a_token)

FAULTS = (
    Fault(
        "drops_what_has_to_wait",
        caught_by={"queue/waiting_request_is_streamed_once_there_is_room": "OE-GEN-018 SMG-GEN-016"},
    ),
    Fault(
        "leaves_what_waits_in_the_queue",
        "F097",
        caught_by={
            "queue/cancel_takes_a_waiting_request_out_of_the_queue": "OE-GEN-035 SMG-GEN-019",
            "queue/abort_takes_a_waiting_request_out_of_the_queue": "OE-ABT-005 SMG-ABT-001",
        },
    ),
    Fault(
        "aborts_running_requests_only",
        "F110",
        caught_by={"queue/abort_of_all_requests_reaches_the_queue": "OE-ABT-008"},
        protocols=("openengine",),
    ),
    Fault(
        "keeps_the_id_of_what_never_ran",
        "F097",
        caught_by={"queue/id_of_a_request_that_left_the_queue_is_free": "OE-GEN-027 SMG-GEN-010"},
    ),
)
