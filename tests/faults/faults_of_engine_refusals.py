"""Faults where the engine does not take a request: the refusal has the wrong code or words, or breaks the server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.base import Message, WireProtocol
from tests.faults.alterations import Refusal, on_refusal
from tests.faults.faults_of_errors import TellingEngine, words_of
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


async def _in_its_words(refusal: Refusal, call: Call) -> AsyncIterator[Message]:
    await call.context.abort(refusal.code, words_of(call))
    yield


refuses_in_the_engines_words = Mutant(wrap=on_refusal(_in_its_words), engine=TellingEngine)


async def _internal(refusal: Refusal, call: Call) -> AsyncIterator[Message]:
    await call.context.abort(grpc.StatusCode.INTERNAL, refusal.details)
    yield


refuses_everything_as_internal = Mutant(wrap=on_refusal(_internal))


async def _empty(refusal: Refusal, call: Call) -> AsyncIterator[Message]:
    return
    yield


answers_a_refusal_with_an_empty_stream = Mutant(wrap=on_refusal(_empty))


async def _count(refusal: Refusal, call: Call) -> AsyncIterator[Message]:
    call.engine.__dict__["refused"] = call.engine.__dict__.get("refused", 0) + 1
    await call.context.abort(refusal.code, refusal.details)
    yield


def _worn(servicer: Any, wire: WireProtocol, engine: GatedEngine) -> Any:
    class Worn:
        def __getattr__(self, name: str) -> Any:
            return getattr(servicer, name)

        async def Generate(self, request: Message, context: Any) -> AsyncIterator[Message]:
            if engine.__dict__.get("refused", 0) > 1:
                await context.abort(grpc.StatusCode.INTERNAL, "broken by an earlier request")
            async for message in on_refusal(_count)(servicer, wire, engine).Generate(request, context):
                yield message

    return Worn() if hasattr(servicer, "Generate") else servicer


breaks_after_two_refusals = Mutant(wrap=_worn)


FAULTS = (
    Fault(
        "refuses_in_the_engines_words",
        "F062",
        caught_by={"errors/refusals_text_does_not_change_its_code": "OE-ERR-019 SMG-ERR-002"},
    ),
    Fault(
        "refuses_everything_as_internal",
        "F055",
        caught_by={
            "errors/refusals_text_does_not_change_its_code": "OE-ERR-019 SMG-ERR-002",
            "errors/full_engine_is_a_refusal_to_be_retried": "OE-ERR-013 SMG-ERR-006",
        },
    ),
    Fault(
        "answers_a_refusal_with_an_empty_stream",
        caught_by={"errors/dead_engine_refuses_new_work": "OE-ERR-001 SMG-ERR-001"},
    ),
    Fault(
        "breaks_after_two_refusals",
        "F064",
        caught_by={"errors/refusals_leave_later_requests_alone": "OE-ERR-017 SMG-ERR-005"},
    ),
)
