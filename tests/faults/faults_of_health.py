"""Faults of the health check: it does not follow the engine, fails as a call, bothers the engine, or waits for it."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.faults_of_abort import Around, Method, around
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

READY, DRAINING = 2, 4
"""``HealthState``."""


def on_health(act: Around) -> Any:
    return around(("Health", "HealthCheck"), act)


async def _as_if(healthy: bool, method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    """The reference servicer's answer for another state of the engine (it does not wait)."""
    truth, engine.healthy = engine.healthy, healthy
    try:
        return await method(request, context)
    finally:
        engine.healthy = truth


async def _well(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    return await _as_if(True, method, request, context, engine)


always_healthy = Mutant(wrap=on_health(_well))


async def _unwell(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    return await _as_if(False, method, request, context, engine)


never_healthy = Mutant(wrap=on_health(_unwell))


async def _by_status(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    if not engine.healthy:
        await context.abort(grpc.StatusCode.UNAVAILABLE, "the engine is not healthy")
    return await method(request, context)


tells_bad_health_by_a_status = Mutant(wrap=on_health(_by_status))


async def _remember(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    first: bool = engine.__dict__.setdefault("first", engine.healthy)
    return await _as_if(first, method, request, context, engine)


keeps_its_first_answer = Mutant(wrap=on_health(_remember))


async def _probe(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    generation = engine.submit(f"probe-{uuid.uuid4()}", Prompt((1,)), GenerationParameters(max_tokens=1))
    async for _ in generation:
        pass
    return await method(request, context)


generates_for_a_light_check = Mutant(wrap=on_health(_probe))


async def _wait(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    await engine.idle()
    return await method(request, context)


waits_for_a_silent_engine = Mutant(wrap=on_health(_wait))


async def _undrained(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    answer = await method(request, context)
    for told in (answer, *answer.checks):
        if told.state == DRAINING:
            told.state = READY
    return answer


hides_that_it_drains = Mutant(wrap=on_health(_undrained))


async def _notice(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    try:
        async for message in messages:
            yield message
    except (asyncio.CancelledError, GeneratorExit):
        call.engine.healthy = False
        raise


one_cancel_makes_the_server_unhealthy = Mutant(generate=_notice)

FAULTS = (
    Fault(
        "always_healthy",
        "F158",
        caught_by={
            "health/unhealthy_engine_shows_in_the_answer": "OE-HLT-008 SMG-HLT-002 SMG-HLT-003",
            "health/dead_engine_shows_in_the_answer": "OE-HLT-008 SMG-HLT-002",
            "health/health_follows_the_engine_both_ways": "OE-HLT-007 SMG-HLT-001",
        },
    ),
    Fault(
        "never_healthy",
        caught_by={
            "health/healthy_server_says_so": "OE-HLT-007 SMG-HLT-001",
            "black_box/server_that_serves_is_healthy": "OE-HLT-006 SMG-HLT-001",
        },
    ),
    Fault(
        "tells_bad_health_by_a_status",
        caught_by={"health/unhealthy_engine_shows_in_the_answer": "OE-HLT-008 SMG-HLT-003"},
    ),
    Fault(
        "keeps_its_first_answer",
        caught_by={"health/health_follows_the_engine_both_ways": "OE-HLT-007 SMG-HLT-001"},
    ),
    Fault(
        "generates_for_a_light_check",
        caught_by={"health/light_check_makes_no_engine_request": "OE-HLT-001 SMG-HLT-005"},
    ),
    Fault(
        "waits_for_a_silent_engine",
        caught_by={"health/health_is_answered_while_the_engine_is_silent": "OE-HLT-012 SMG-HLT-004"},
    ),
    Fault(
        "hides_that_it_drains",
        caught_by={"health/draining_server_says_so": "OE-HLT-009"},
        protocols=("openengine",),
    ),
    Fault(
        "one_cancel_makes_the_server_unhealthy",
        caught_by={"health/cancelled_and_aborted_requests_leave_health_alone": "OE-ERR-017 SMG-ERR-005"},
    ),
)
