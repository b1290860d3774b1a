"""Faults in whose request an id means: a second one hurts the first, ids are mixed up, old ends hit new requests."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from pytest_grpc_conformance.engines.gated import GatedEngine, GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message, WireProtocol
from tests.faults.alterations import each
from tests.faults.faults_of_cancel import HandingEngine, handles_of
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

OPENENGINE = ("openengine",)


async def _give_way(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    newest: dict[str, Call] = call.engine.__dict__.setdefault("newest", {})
    newest[call.request.request_id] = call
    async for message in messages:
        if newest[call.request.request_id] is not call:
            return
        yield message


first_gives_way_to_the_second = Mutant(generate=_give_way)


def _table(servicer: Any) -> dict[str, Any]:
    """The reference servicer's table of active requests."""
    table: dict[str, Any] = servicer._running if hasattr(servicer, "_running") else servicer.state._active
    return table


def _forgetting(before: bool) -> Any:
    """A servicer that forgets the first request of an id when a second one comes: before or after looking at it."""

    def wrap(servicer: Any, wire: WireProtocol, engine: GatedEngine) -> Any:
        class Forgetting:
            def __getattr__(self, name: str) -> Any:
                return getattr(servicer, name)

            async def Generate(self, request: Message, context: Any) -> AsyncIterator[Message]:
                table, name = _table(servicer), request.request_id
                twin = name in table
                if twin and before:
                    del table[name]
                try:
                    async for message in servicer.Generate(request, context):
                        yield message
                finally:
                    if twin:
                        table.pop(name, None)

        return Forgetting() if hasattr(servicer, "Generate") else servicer

    return wrap


def _taken_at_submission(servicer: Any, wire: WireProtocol, engine: GatedEngine) -> Any:
    """A servicer that enters an id only when the engine has the request, so not while its prompt is tokenized."""

    class Late:
        def __getattr__(self, name: str) -> Any:
            return getattr(servicer, name)

        async def Generate(self, request: Message, context: Any) -> AsyncIterator[Message]:
            table = _table(servicer)
            active = table.get(request.request_id)
            if active is not None and active.generation is None:
                del table[request.request_id]
            async for message in servicer.Generate(request, context):
                yield message

    return Late() if hasattr(servicer, "Generate") else servicer


takes_an_id_at_submission_only = Mutant(wrap=_taken_at_submission)
serves_two_requests_under_one_id = Mutant(wrap=_forgetting(before=True))
forgets_the_first_with_the_second = Mutant(wrap=_forgetting(before=False))


async def _end_alike(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    try:
        async for message in messages:
            yield message
    finally:
        for handle in handles_of(call.engine):
            if handle.request_id.startswith(call.request.request_id):
                handle.abort()


takes_a_prefix_for_the_id = Mutant(generate=_end_alike, engine=HandingEngine)


class _AbortsById(HandingEngine):
    """An engine that carries out a pending abort on whatever has the id by then."""

    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> GatedGeneration:
        generation = super().submit(request_id, prompt, parameters)
        if request_id in self.aborts:
            generation.abort()
        return generation


old_abort_hits_the_next_request = Mutant(engine=_AbortsById)


async def _keep_long(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    kept: set[str] = call.engine.__dict__.setdefault("kept", set())
    if call.request.request_id in kept:
        await call.context.abort(grpc.StatusCode.ALREADY_EXISTS, "this id is active")
    sent = 0
    async for message in messages:
        sent += 1
        if sent > 20:
            kept.add(call.request.request_id)
        yield message


keeps_the_id_of_a_long_stream = Mutant(generate=_keep_long)


def _cut_id(message: Message) -> None:
    message.request_id = message.request_id[:64]


cuts_long_ids = Mutant(generate=each(_cut_id))


FAULTS = (
    Fault(
        "first_gives_way_to_the_second",
        "F117",
        caught_by={"request_id/second_request_does_not_hurt_the_first": "OE-GEN-026 SMG-GEN-018"},
    ),
    Fault(
        "serves_two_requests_under_one_id",
        caught_by={
            "request_id/second_request_is_refused": "OE-GEN-026",
            "request_id/second_request_does_not_reach_the_engine": "OE-GEN-037",
        },
        protocols=OPENENGINE,
    ),
    Fault(
        "forgets_the_first_with_the_second",
        caught_by={"request_id/second_request_leaves_the_first_abortable": "OE-GEN-026 SMG-GEN-018"},
    ),
    Fault(
        "takes_a_prefix_for_the_id",
        "F098",
        caught_by={
            "request_id/ids_that_look_alike_are_different": "OE-GEN-019 SMG-GEN-017",
            "abort/abort_touches_only_its_target": "OE-ABT-009 SMG-ABT-003",
        },
    ),
    Fault(
        "old_abort_hits_the_next_request",
        "F166",
        caught_by={"request_id/late_end_does_not_reach_the_next_request": "OE-GEN-027 OE-ERR-025 SMG-GEN-017"},
    ),
    Fault(
        "takes_an_id_at_submission_only",
        "F117",
        caught_by={"request_id/id_is_taken_while_its_prompt_is_tokenized": "OE-GEN-026"},
        protocols=OPENENGINE,
    ),
    Fault(
        "keeps_the_id_of_a_long_stream",
        "F119",
        caught_by={
            "request_id/id_can_be_used_again": "OE-GEN-027 SMG-GEN-010",
            "cancel/cancel_frees_the_id": "OE-GEN-027 SMG-GEN-010",
        },
    ),
    Fault("cuts_long_ids", caught_by={"request_id/long_id_is_repeated_whole": "OE-GEN-003 SMG-GEN-003"}),
)
