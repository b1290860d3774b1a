"""Faults in what the messages of a plain stream say: no event, no id, wrong counts, or what nobody asked for."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    Alteration,
    body,
    counts_of,
    each,
    has_tokens,
    index_of,
    is_end,
    leave_index_zero_out,
    streamed,
)
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


def _opening_without_event(call: Call) -> Alteration:
    opened = False

    def step(message: Message) -> Iterable[Message]:
        nonlocal opened
        if opened:
            return (message,)
        opened = True
        return (type(message)(request_id=message.request_id), message)

    return step


def _forget_id(message: Message) -> None:
    if is_end(message):
        message.ClearField("request_id")


def _with_prompt(call: Call) -> Alteration:
    """The prompt's tokens go out, asked for or not."""
    told = False

    def step(message: Message) -> Iterable[Message]:
        nonlocal told
        if is_end(message) and hasattr(body(message), "prompt_logprobs"):
            body(message).prompt_logprobs.add(token_id=1)
        elif hasattr(message, "prompt") and not told:
            told = True
            opening = type(message)(request_id=message.request_id)
            opening.prompt.tokens.add(token_id=1)
            return (opening, message)
        return (message,)

    return step


def _with_handoff(call: Call) -> Alteration:
    def step(message: Message) -> Iterable[Message]:
        if not is_end(message):
            return (message,)
        handoff = type(message)(request_id=message.request_id)
        handoff.prefill_ready.SetInParent()
        return (handoff, message)

    return step


def _count_short(message: Message) -> None:
    counts = counts_of(message)
    if getattr(counts, "completion_tokens", 0):
        counts.completion_tokens -= 1


def _no_prompt_count(message: Message) -> None:
    if has_tokens(message):
        body(message).prompt_tokens = 0


def _cached_on_the_terminal(message: Message) -> None:
    if is_end(message):
        body(message).cached_tokens += 1


def _chunk_first(call: Call) -> Alteration:
    """Whether streaming was asked for is not looked at."""

    def step(message: Message) -> Iterable[Message]:
        if not is_end(message) or call.request.streaming:
            return (message,)
        chunk = type(message)(request_id=message.request_id)
        chunk.chunk.token_ids.extend(body(message).output_token_ids)
        chunk.chunk.sequence_index = index_of(message)
        return (chunk, message)

    return step


opens_without_an_event = Mutant(generate=streamed(_opening_without_event))
forgets_the_request_id_at_the_end = Mutant(generate=each(_forget_id))
leaves_index_zero_out = Mutant(generate=each(leave_index_zero_out))
always_sends_the_prompt = Mutant(generate=streamed(_with_prompt))
always_sends_a_handoff = Mutant(generate=streamed(_with_handoff))
counts_one_token_less = Mutant(generate=each(_count_short))
chunks_lack_the_prompt_count = Mutant(generate=each(_no_prompt_count))
cached_count_changes_at_the_end = Mutant(generate=each(_cached_on_the_terminal))
streams_unasked = Mutant(generate=streamed(_chunk_first))

FAULTS = (
    Fault(
        "opens_without_an_event",
        caught_by={"delivery/each_message_sets_one_event": "OE-GEN-002 SMG-GEN-004"},
    ),
    Fault(
        "forgets_the_request_id_at_the_end",
        caught_by={"delivery/each_message_repeats_the_request_id": "OE-GEN-003 SMG-GEN-003"},
    ),
    Fault(
        "leaves_index_zero_out",
        caught_by={
            "delivery/token_messages_name_the_first_sequence": "OE-GEN-007",
            "delivery/terminal_message_names_the_first_sequence": "OE-GEN-008",
        },
        protocols=("openengine",),
    ),
    Fault(
        "always_sends_the_prompt",
        caught_by={"delivery/plain_request_gets_no_prompt_tokens": "OE-GEN-005 SMG-CMP-010"},
    ),
    Fault(
        "always_sends_a_handoff",
        caught_by={"delivery/plain_request_gets_no_prefill_handoff": "OE-GEN-016"},
        protocols=("openengine",),
    ),
    Fault(
        "counts_one_token_less",
        caught_by={"delivery/counts_follow_the_records": "OE-TOK-011 SMG-CHK-006"},
    ),
    Fault(
        "chunks_lack_the_prompt_count",
        "F071",
        caught_by={"delivery/chunks_tell_the_length_of_the_prompt": "SMG-CHK-007"},
        protocols=("smg",),
    ),
    Fault(
        "cached_count_changes_at_the_end",
        caught_by={"delivery/chunks_agree_on_the_cached_tokens": "SMG-CHK-008"},
        protocols=("smg",),
    ),
    Fault(
        "streams_unasked",
        caught_by={"delivery/request_without_streaming_gets_terminal_messages_only": "SMG-GEN-011"},
        protocols=("smg",),
    ),
)
