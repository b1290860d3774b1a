"""Faults when something fails: the failure is hidden, doubled, told in the wrong form or words, or hits others."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.base import Message, WireProtocol
from tests.faults.alterations import (
    Refusal,
    RememberingEngine,
    has_tokens,
    index_of,
    is_end,
    kind,
    on_refusal,
    streamed,
    token_ids,
)
from tests.faults.faults_of_cancel import deaf
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

OPENENGINE = ("openengine",)
FAILURE_CODES = (grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE)
"""With which SMG's reference servicer ends a request that has failed."""

Failed = Callable[[Message | Refusal, Call, list[Message]], AsyncIterator[Message]]
"""What a faulty servicer does about a failure, an in-band error or a status, after the messages so far."""


def on_failure(act: Failed) -> Callable[[Any, WireProtocol, GatedEngine], Any]:
    """A servicer that does something else where the reference servicer tells of the failure of a request."""

    class Failing:
        def __init__(self, reference: Any, wire: WireProtocol, engine: GatedEngine) -> None:
            self._reference = reference
            self._wire = wire
            self._engine = engine

        def __getattr__(self, name: str) -> Any:
            return getattr(self._reference, name)

        async def Generate(self, request: Message, context: Any) -> AsyncIterator[Message]:
            call = Call(self._wire, self._engine, request, context)
            sent: list[Message] = []

            async def refused(refusal: Refusal, _: Call) -> AsyncIterator[Message]:
                if refusal.code not in FAILURE_CODES:
                    await context.abort(refusal.code, refusal.details)
                async for message in act(refusal, call, sent):
                    yield message

            inner = on_refusal(refused)(self._reference, self._wire, self._engine)
            async for message in inner.Generate(request, context):
                if kind(message) != "error":
                    sent.append(message)
                    yield message
                    continue
                async for other in act(message, call, sent):
                    yield other

    return lambda servicer, wire, engine: Failing(servicer, wire, engine) if hasattr(servicer, "Generate") else servicer


async def tell(failure: Message | Refusal, call: Call) -> AsyncIterator[Message]:
    """Tell of a failure as the reference servicer does."""
    if isinstance(failure, Refusal):
        await call.context.abort(failure.code, failure.details)
    yield failure


def _end(call: Call, index: int, sent: list[Message]) -> Message:
    """A terminal message of success for one sequence."""
    message = call.wire.generate.response(request_id=call.request.request_id)
    ids = [i for m in sent if has_tokens(m) and index_of(m) == index for i in token_ids(m)]
    if call.wire.traits.errors_in_band:
        message.finished.output_index = index
        message.finished.reason = 2  # LENGTH
    else:
        message.complete.sequence_index = index
        message.complete.finish_reason = "length"
        message.complete.output_token_ids.extend(ids)
    return message


async def _complete(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    for index in sorted({0, *(index_of(m) for m in sent if has_tokens(m))}):
        if not any(is_end(m) and index_of(m) == index for m in sent):
            yield _end(call, index, sent)


passes_a_failure_off_as_complete = Mutant(wrap=on_failure(_complete))


async def _nothing(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    return
    yield


swallows_failures = Mutant(wrap=on_failure(_nothing))


async def _nothing_late(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    if len(sent) <= 20:
        async for message in tell(failure, call):
            yield message


swallows_failures_after_many_messages = Mutant(wrap=on_failure(_nothing_late))


async def _twice(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    async for message in tell(failure, call):
        yield message
    await call.context.abort(grpc.StatusCode.INTERNAL, "the request failed")


tells_a_failure_in_both_forms = Mutant(wrap=on_failure(_twice))


async def _more(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    if isinstance(failure, Refusal):
        for message in sent[-1:]:
            yield message
    async for message in tell(failure, call):
        yield message
    for message in sent[-1:]:
        yield message


repeats_the_last_message_with_a_failure = Mutant(wrap=on_failure(_more))


async def _hold_one(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    held: Message | None = None
    try:
        async for message in messages:
            if kind(message) == "error":
                held = None
            if held is not None:
                yield held
            held = message
    except Exception:
        held = None
        raise
    if held is not None:
        yield held


loses_what_it_holds_back_at_a_failure = Mutant(generate=_hold_one)


async def _finish_last(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    held: list[Message] = []
    async for message in messages:
        if is_end(message):
            held.append(message)
            continue
        if kind(message) == "error":
            held.clear()
        yield message
    for message in held:
        yield message


finishes_no_sequence_before_all_have = Mutant(generate=_finish_last)


async def _no_usage(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    if not isinstance(failure, Refusal):
        failure.ClearField("usage")
    async for message in tell(failure, call):
        yield message


leaves_usage_off_an_error = Mutant(wrap=on_failure(_no_usage))


async def _no_words(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    if isinstance(failure, Refusal):
        failure.details = ""
    else:
        failure.error.message = ""
        failure.error.code = 0
    async for message in tell(failure, call):
        yield message


gives_no_cause = Mutant(wrap=on_failure(_no_words))


class TellingEngine(RememberingEngine):
    """An engine whose own words a fault can pass on."""

    last_words = ""

    def kill(self, message: str = "engine died") -> None:
        self.last_words = message
        super().kill(message)

    def words(self, request_id: str) -> str:
        gate = self.gates.get(request_id)
        refusal = gate.script.refusal if gate else None
        own = "" if gate is None else refusal.message if refusal else gate.script.failure
        return self.last_words or own


def words_of(call: Call) -> str:
    assert isinstance(call.engine, TellingEngine)
    return call.engine.words(call.request.request_id)


async def _leak(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    if isinstance(failure, Refusal):
        failure.details = f"EngineFailure: {words_of(call)}"
    else:
        failure.error.message = f"EngineFailure: {words_of(call)}"
    async for message in tell(failure, call):
        yield message


passes_the_engines_text_on = Mutant(wrap=on_failure(_leak), engine=TellingEngine)


async def _if_text(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    if words_of(call):
        async for message in tell(failure, call):
            yield message


takes_an_error_without_text_for_none = Mutant(wrap=on_failure(_if_text), engine=TellingEngine)


class _Dying(GatedEngine):
    """An engine whose open requests do not learn that it is dead."""

    def kill(self, message: str = "engine died") -> None:
        self._down = message
        self.healthy = False


leaves_streams_open_when_the_engine_dies = Mutant(engine=_Dying)


async def _unwell(failure: Message | Refusal, call: Call, sent: list[Message]) -> AsyncIterator[Message]:
    call.engine.healthy = False
    async for message in tell(failure, call):
        yield message


one_failure_makes_the_server_unhealthy = Mutant(wrap=on_failure(_unwell))


def _silent_when_empty(call: Call) -> Any:
    seen: list[Message] = []

    def step(message: Message) -> tuple[Message, ...]:
        seen.extend([message] if has_tokens(message) else [])
        return (message,) if seen else ()

    return step


sends_nothing_without_tokens = Mutant(generate=streamed(_silent_when_empty))
lets_the_engine_run_on = Mutant(engine=deaf(lambda run: True))

_FORM = "OE-ERR-002 OE-ERR-005 SMG-ERR-001"

FAULTS = (
    Fault(
        "passes_a_failure_off_as_complete",
        "F053",
        caught_by={
            "errors/engine_failure_has_the_protocols_form": _FORM,
            "errors/engine_that_ends_early_is_a_failure": "OE-GEN-017 SMG-GEN-012",
            "errors/failure_is_no_finish": "OE-FIN-010 SMG-ERR-003",
            "errors/nothing_follows_a_failure": "OE-ERR-004 SMG-ERR-001",
            "errors/failure_ends_every_open_sequence": "OE-ERR-008 OE-N-008 SMG-N-007",
            "errors/engines_text_does_not_change_the_form": "OE-ERR-002 SMG-ERR-001",
            "errors/engine_that_dies_fails_every_open_stream": "OE-ERR-002 SMG-ERR-001",
            "errors/result_that_cannot_be_sent_fails_its_request": "OE-ERR-021 SMG-ERR-008",
        },
    ),
    Fault(
        "swallows_failures",
        "F046",
        caught_by={
            "errors/engine_failure_has_the_protocols_form": _FORM,
            "errors/engine_that_ends_early_is_a_failure": "OE-GEN-017 SMG-GEN-012",
            "errors/failure_has_a_code_and_words": "OE-ERR-009 OE-ERR-010 SMG-ERR-004",
        },
    ),
    Fault(
        "swallows_failures_after_many_messages",
        "F046",
        caught_by={
            "errors/engine_failure_has_the_protocols_form": _FORM,
            "errors/engine_that_ends_early_is_a_failure": "OE-GEN-017 SMG-GEN-012",
        },
    ),
    Fault(
        "tells_a_failure_in_both_forms",
        caught_by={"errors/engine_failure_has_the_protocols_form": _FORM},
        protocols=OPENENGINE,
    ),
    Fault(
        "repeats_the_last_message_with_a_failure",
        caught_by={"errors/nothing_follows_a_failure": "OE-ERR-004 SMG-ERR-001"},
    ),
    Fault(
        "loses_what_it_holds_back_at_a_failure",
        caught_by={
            "errors/failure_keeps_what_was_delivered": "OE-ERR-016 SMG-ERR-003",
            "errors/failure_ends_every_open_sequence": "OE-ERR-008 OE-N-008 SMG-N-007",
        },
    ),
    Fault(
        "finishes_no_sequence_before_all_have",
        caught_by={"errors/finished_sequence_keeps_its_finish_through_a_failure": "OE-N-008"},
        protocols=OPENENGINE,
    ),
    Fault(
        "leaves_usage_off_an_error",
        caught_by={"errors/failure_tells_what_was_used": "OE-USE-003"},
        protocols=OPENENGINE,
    ),
    Fault(
        "gives_no_cause",
        caught_by={"errors/failure_has_a_code_and_words": "OE-ERR-009 OE-ERR-010 SMG-ERR-004"},
    ),
    Fault(
        "passes_the_engines_text_on",
        "F057",
        caught_by={
            "errors/failure_does_not_leak_the_engines_text": "GRPC-SVC-14",
            "errors/engine_that_dies_leaks_no_text": "GRPC-SVC-14",
        },
    ),
    Fault(
        "takes_an_error_without_text_for_none",
        caught_by={"errors/engines_text_does_not_change_the_form": "OE-ERR-002 SMG-ERR-001"},
    ),
    Fault(
        "leaves_streams_open_when_the_engine_dies",
        "F052",
        caught_by={"errors/engine_that_dies_fails_every_open_stream": "OE-ERR-002 SMG-ERR-001"},
    ),
    Fault(
        "one_failure_makes_the_server_unhealthy",
        caught_by={
            "errors/failure_leaves_other_requests_alone": "OE-ERR-017 SMG-ERR-005",
            "health/failing_requests_leave_health_alone": "OE-ERR-017 SMG-ERR-005",
        },
    ),
    Fault(
        "sends_nothing_without_tokens",
        "F050",
        caught_by={"errors/generation_without_tokens_has_one_terminal_message": "OE-GEN-011 SMG-CMP-002"},
    ),
    Fault(
        "lets_the_engine_run_on",
        caught_by={"errors/result_that_cannot_be_sent_fails_its_request": "OE-ERR-021 SMG-ERR-008"},
    ),
)
