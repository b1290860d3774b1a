"""Faults that a stranger sees without knowing the script: messages that do not agree with each other or the request."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    Alteration,
    body,
    counts_of,
    each,
    has_tokens,
    index_of,
    is_end,
    scored_tokens,
    set_index,
    streamed,
    token_ids,
)
from tests.faults.faults_of_abort import Method, around
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

SMG = ("smg",)


def _doubled(wanted: Callable[[Message], bool]) -> Mutant:
    return Mutant(generate=streamed(lambda call: lambda message: (message,) * (1 + wanted(message))))


sends_each_end_twice = _doubled(is_end)
sends_each_token_twice = _doubled(has_tokens)


def _final_counts(message: Message) -> Any:
    """Where a message has its counts, ``None`` on a token message."""
    return None if has_tokens(message) else counts_of(message)


def _one_short(message: Message) -> None:
    usage = _final_counts(message)
    if usage is not None:
        usage.completion_tokens -= 1


counts_before_the_last_step = Mutant(generate=each(_one_short))


def _first_only(call: Call) -> Alteration:
    first = 0

    def step(message: Message) -> Iterable[Message]:
        nonlocal first
        if has_tokens(message) and index_of(message) == 0:
            first += len(token_ids(message))
        usage = _final_counts(message)
        if hasattr(message, "usage") and usage is not None:
            usage.completion_tokens = first
        elif usage is not None and index_of(message) > 0:
            usage.completion_tokens = 0
        return (message,)

    return step


counts_one_sequence = Mutant(generate=streamed(_first_only))
calls_every_sequence_the_first = Mutant(generate=each(lambda message: set_index(message, 0)))


def _last_lost(message: Message) -> None:
    if is_end(message):
        del body(message).output_token_ids[-1:]


leaves_the_last_token_out_of_the_end = Mutant(generate=each(_last_lost))


def _positive(message: Message) -> None:
    if has_tokens(message) or is_end(message):
        for record in scored_tokens(message):
            record.logprob = -record.logprob


gives_positive_log_probabilities = Mutant(generate=each(_positive))


def _score(message: Message) -> None:
    if not has_tokens(message):
        return
    if hasattr(body(message), "tokens"):
        for record in body(message).tokens:
            record.logprob = -1.0
    else:
        for token_id in token_ids(message):
            body(message).logprobs.add(token_id=token_id, logprob=-1.0)


scores_what_nobody_asked_for = Mutant(generate=each(_score))


async def _newest_id(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    call.engine.__dict__["newest"] = call.request.request_id
    async for message in messages:
        message.request_id = call.engine.__dict__["newest"]
        yield message


labels_all_streams_with_the_newest_id = Mutant(generate=_newest_id)


async def _nameless(method: Method, request: Message, context: Any, engine: GatedEngine) -> Message:
    answer = await method(request, context)
    if hasattr(answer, "model_id"):
        answer.ClearField("model_id")
    elif hasattr(answer, "supported_models"):
        answer.ClearField("supported_models")
    return answer


does_not_name_its_model = Mutant(wrap=around(("GetServerInfo", "GetModelInfo"), _nameless))

FAULTS = (
    Fault(
        "sends_each_end_twice",
        caught_by={"black_box/stream_is_in_order": "OE-GEN-011 OE-GEN-012 SMG-CMP-002 SMG-CHK-005"},
    ),
    Fault(
        "sends_each_token_twice",
        caught_by={"black_box/max_tokens_bounds_the_output": "OE-GEN-028 OE-FIN-008 SMG-CMP-004"},
    ),
    Fault(
        "counts_before_the_last_step",
        "F077",
        caught_by={"black_box/usage_is_what_was_delivered": "OE-TOK-011 OE-USE-002 SMG-CMP-008"},
    ),
    Fault(
        "counts_one_sequence",
        "F070",
        caught_by={"black_box/usage_counts_every_sequence": "OE-N-007 SMG-N-004"},
    ),
    Fault(
        "calls_every_sequence_the_first",
        "F089",
        caught_by={"black_box/sequences_have_their_indexes": "OE-N-003 OE-GEN-009 SMG-N-001"},
    ),
    Fault(
        "leaves_the_last_token_out_of_the_end",
        caught_by={"black_box/terminal_message_repeats_the_stream": "SMG-CHK-003 SMG-CMP-001"},
        protocols=SMG,
    ),
    Fault(
        "gives_positive_log_probabilities",
        caught_by={"black_box/scores_are_log_probabilities": "OE-LP-001 OE-LP-019 SMG-CHK-009"},
    ),
    Fault(
        "scores_what_nobody_asked_for",
        caught_by={"black_box/no_scores_unless_asked_for": "OE-LP-002 SMG-CHK-009"},
    ),
    Fault(
        "labels_all_streams_with_the_newest_id",
        caught_by={"black_box/streams_at_once_are_each_whole": "OE-GEN-019 SMG-GEN-017"},
    ),
    Fault(
        "does_not_name_its_model",
        caught_by={"black_box/discovered_model_is_served": "OE-WIRE-013 SMG-GEN-001"},
    ),
)
