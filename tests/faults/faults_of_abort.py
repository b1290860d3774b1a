"""Faults of Abort: it does nothing, hits others, lies about what it did, or spoils the end of the stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.base import Message, WireProtocol
from tests.faults.alterations import RememberingEngine, body, each, has_tokens, is_end, kind
from tests.faults.faults_of_cancel import HandingEngine, handles_of
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

OPENENGINE, SMG = ("openengine",), ("smg",)
ABORTED, ALREADY_FINISHED = 1, 2
"""``AbortStatus``."""

Method = Callable[[Message, Any], Awaitable[Message]]
"""A unary method of a servicer."""
Around = Callable[[Method, Message, Any, GatedEngine], Awaitable[Message]]
"""A faulty method: it gets the reference servicer's, the request, the call's context, and the engine."""


def around(names: tuple[str, ...], act: Around) -> Callable[[Any, WireProtocol, GatedEngine], Any]:
    """A servicer with one other method, whichever of the names it has."""

    def wrap(servicer: Any, wire: WireProtocol, engine: GatedEngine) -> Any:
        class Faulty:
            def __getattr__(self, name: str) -> Any:
                method = getattr(servicer, name)
                if name not in names:
                    return method

                async def faulty(request: Message, context: Any) -> Message:
                    return await act(method, request, context, engine)

                return faulty

        return Faulty()

    return wrap


def on_abort(act: Around) -> Callable[[Any, WireProtocol, GatedEngine], Any]:
    return around(("Abort",), act)


def _claim(answer: Message, done: bool) -> Message:
    """The same answer, which says that the request was aborted, or that it was over (or not there)."""
    if hasattr(answer, "success"):
        answer.success = done
    else:
        answer.status = ABORTED if done else ALREADY_FINISHED
    return answer


async def _denies(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    return _claim(await method(request, context), False)


denies_every_abort = Mutant(wrap=on_abort(_denies))


class _Unheard:
    """A context whose ``abort`` only ends the method, so that a fault can answer all the same."""

    class Ended(Exception):
        pass

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        raise self.Ended


def _answer(request: Message) -> Message:
    from smg_grpc_proto.generated import trtllm_service_pb2

    from pytest_grpc_conformance.protocols.openengine.bindings import lifecycle_pb2

    ours = request.DESCRIPTOR.full_name.startswith("openengine")
    return lifecycle_pb2.AbortResponse() if ours else trtllm_service_pb2.AbortResponse()


async def _claims(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    try:
        return _claim(await method(request, _Unheard()), True)
    except _Unheard.Ended:
        return _claim(_answer(request), True)


claims_every_abort = Mutant(wrap=on_abort(_claims))


async def _nothing(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    return _claim(_answer(request), True)


answers_an_abort_without_doing_it = Mutant(wrap=on_abort(_nothing))


async def _fails_unless_active(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    if request.request_id not in engine.in_flight():
        await context.abort(grpc.StatusCode.INTERNAL, "no such request")
    return await method(request, context)


fails_on_an_unknown_id = Mutant(wrap=on_abort(_fails_unless_active))


async def _passes_on(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    answer = await method(request, context)
    for handle in handles_of(engine):
        if handle.request_id == request.request_id:
            handle.abort()
    return answer


passes_every_abort_on = Mutant(wrap=on_abort(_passes_on), engine=HandingEngine)


async def _by_prefix(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    for handle in handles_of(engine):
        if handle.request_id.startswith(request.request_id.strip("*")):
            handle.abort()
    return await method(request, context)


aborts_by_prefix = Mutant(wrap=on_abort(_by_prefix), engine=HandingEngine)


async def _unspecified(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    answer = await method(request, context)
    if answer.status == ALREADY_FINISHED:
        answer.ClearField("status")
    return answer


leaves_the_status_unspecified = Mutant(wrap=on_abort(_unspecified))


async def _forgets(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    aborted: set[str] = engine.__dict__.setdefault("aborted", set())
    if request.request_id in aborted:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no such request")
    aborted.add(request.request_id)
    return await method(request, context)


does_not_know_an_id_once_aborted = Mutant(wrap=on_abort(_forgets))


async def _waits(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    answer = await method(request, context)
    assert isinstance(engine, RememberingEngine)
    await engine.gates[request.request_id].settled()
    return answer


waits_for_the_engine = Mutant(wrap=on_abort(_waits), engine=RememberingEngine)


async def _says_length(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    async for message in messages:
        if is_end(message) and hasattr(body(message), "finish_reason"):
            body(message).finish_reason = "length"
        elif is_end(message):
            body(message).reason = 2  # LENGTH
        yield message


says_length_for_cancelled = Mutant(generate=_says_length)


async def _repeats(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    last: Message | None = None
    async for message in messages:
        if last is not None and (is_end(message) or kind(message) == "error"):
            yield last
        if has_tokens(message):
            last = message
        yield message


repeats_the_last_tokens_at_the_end = Mutant(generate=_repeats)


async def _stays_open(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    seen = False
    async for message in messages:
        seen = seen or has_tokens(message)
        if is_end(message) and not seen:
            await asyncio.sleep(3600)
        yield message


leaves_an_aborted_stream_open = Mutant(generate=_stays_open)


async def _only_the_first(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    async for message in messages:
        if is_end(message) and _index(message) > 0:
            continue
        yield message


def _index(message: Message) -> int:
    part = body(message)
    return int(part.output_index if hasattr(part, "output_index") else part.sequence_index)


ends_only_the_first_sequence = Mutant(generate=_only_the_first)

_ANSWER = "OE-ABT-005 SMG-ABT-001"
_FORM = "OE-ABT-010 OE-FIN-011 SMG-ABT-004"


def _count_nothing(message: Message) -> None:
    if kind(message) == "finished" and message.HasField("usage"):
        message.usage.total_tokens -= message.usage.completion_tokens
        message.usage.completion_tokens = 0
    elif kind(message) == "complete" and message.complete.finish_reason == "cancelled":
        message.complete.completion_tokens = 0


counts_nothing_for_an_aborted_request = Mutant(generate=each(_count_nothing))


FAULTS = (
    Fault(
        "denies_every_abort",
        caught_by={
            "abort/abort_of_a_running_request_is_answered_as_done": _ANSWER,
            "abort/abort_before_the_first_token": "OE-ABT-012 SMG-ABT-008",
            "abort/abort_is_answered_before_the_engine_acts": "OE-ABT-014 SMG-ABT-007",
        },
    ),
    Fault(
        "claims_every_abort",
        caught_by={
            "abort/abort_of_an_unknown_id": "OE-ABT-002 SMG-ABT-002",
            "abort/abort_that_the_engine_refuses_is_not_claimed": "OE-ABT-022 SMG-ABT-009",
            "black_box/abort_of_an_unknown_id_is_answered": "OE-ABT-002 SMG-ABT-002",
        },
    ),
    Fault(
        "claims_every_abort",
        caught_by={
            "abort/abort_of_a_finished_request_says_so": "OE-ABT-006",
            "abort/abort_that_crosses_the_end_is_consistent": "OE-ABT-013",
        },
        protocols=OPENENGINE,
    ),
    Fault(
        "claims_every_abort",
        caught_by={
            "abort/abort_of_a_finished_request_has_no_success": "SMG-ABT-002",
            "abort/second_abort_has_no_success": "SMG-ABT-005",
        },
        protocols=SMG,
    ),
    Fault(
        "answers_an_abort_without_doing_it",
        "F104",
        caught_by={"abort/abort_stops_the_engine": _ANSWER},
    ),
    Fault(
        "fails_on_an_unknown_id",
        "F102",
        caught_by={
            "abort/abort_of_an_unknown_id": "OE-ABT-002 SMG-ABT-002",
            "black_box/abort_of_an_unknown_id_is_answered": "OE-ABT-002 SMG-ABT-002",
        },
    ),
    Fault(
        "passes_every_abort_on",
        "F099",
        caught_by={
            "abort/abort_of_a_finished_request_stays_out_of_the_engine": "OE-ERR-026 SMG-ABT-002",
            "abort/second_abort_stays_out_of_the_engine": "OE-ERR-026 SMG-ABT-005",
            "abort/abort_after_a_cancel_is_harmless": "OE-ERR-026 SMG-ABT-006",
        },
    ),
    Fault(
        "aborts_by_prefix",
        "F098",
        caught_by={
            "abort/abort_touches_only_its_target": "OE-ABT-009 SMG-ABT-003",
            "abort/abort_of_an_unknown_id_aborts_nothing": "OE-ABT-009 SMG-ABT-003",
        },
    ),
    Fault(
        "does_not_know_an_id_once_aborted",
        caught_by={"abort/second_abort_is_no_error": "OE-ABT-007"},
        protocols=OPENENGINE,
    ),
    Fault(
        "leaves_the_status_unspecified",
        caught_by={"abort/abort_is_always_answered_with_a_status": "OE-ABT-016"},
        protocols=OPENENGINE,
    ),
    Fault(
        "waits_for_the_engine",
        caught_by={"abort/abort_is_answered_before_the_engine_acts": "OE-ABT-014 SMG-ABT-007"},
    ),
    Fault(
        "says_length_for_cancelled",
        "F042",
        caught_by={
            "abort/aborted_stream_ends_in_a_legal_form": _FORM,
            "abort/abort_ends_every_sequence": "OE-N-009 SMG-N-006",
        },
    ),
    Fault(
        "repeats_the_last_tokens_at_the_end",
        caught_by={"abort/aborted_stream_keeps_what_was_delivered": "OE-ABT-010 SMG-ABT-004"},
    ),
    Fault(
        "leaves_an_aborted_stream_open",
        "F101",
        caught_by={"abort/abort_before_the_first_token": "OE-ABT-012 SMG-ABT-008"},
    ),
    Fault(
        "ends_only_the_first_sequence",
        caught_by={"abort/abort_ends_every_sequence": "OE-N-009 SMG-N-006"},
    ),
    Fault(
        "counts_nothing_for_an_aborted_request",
        caught_by={"abort/aborted_request_counts_what_came": "OE-USE-004 SMG-CMP-008"},
    ),
)
