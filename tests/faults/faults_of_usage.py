"""Faults in token counts: too many, too few, on the wrong messages, made up."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    Alteration,
    body,
    counts_of,
    each,
    has_tokens,
    index_of,
    is_end,
    kind,
    streamed,
    token_ids,
)
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


def _set(message: Message, *, prompt: int | None = None, completion: int | None = None) -> None:
    """Other counts, where a message has any; a total stays the sum."""
    counts = counts_of(message)
    if counts is None:
        return
    counts.prompt_tokens = counts.prompt_tokens if prompt is None else prompt
    counts.completion_tokens = counts.completion_tokens if completion is None else completion
    if hasattr(counts, "total_tokens"):
        counts.total_tokens = counts.prompt_tokens + counts.completion_tokens


def _sizes_added(call: Call) -> Alteration:
    """Each message adds the size so far, as if it were the size of the message."""
    sizes: dict[int, int] = {}
    added: dict[int, int] = {}

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            index = index_of(message)
            sizes[index] = sizes.get(index, 0) + len(token_ids(message))
            added[index] = added.get(index, 0) + sizes[index]
        _set(message, completion=sum(added.values()))
        return (message,)

    return step


def _last_sequence(call: Call) -> Alteration:
    """Only the tokens of the sequence that ends last are counted."""
    sizes: dict[int, int] = {}

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            sizes[index_of(message)] = sizes.get(index_of(message), 0) + len(token_ids(message))
        elif is_end(message):
            _set(message, completion=sizes.get(index_of(message), 0))
        return (message,)

    return step


def _all_sequences(call: Call) -> Alteration:
    """Every message counts the tokens of all sequences."""
    total = 0

    def step(message: Message) -> Iterable[Message]:
        nonlocal total
        total += len(token_ids(message)) if has_tokens(message) else 0
        _set(message, completion=total)
        return (message,)

    return step


def _before_last_step(call: Call) -> Alteration:
    """The counts are taken before the tokens of the last step are there."""
    latest = 0

    def step(message: Message) -> Iterable[Message]:
        nonlocal latest
        if has_tokens(message):
            latest = len(token_ids(message))
        elif is_end(message) and counts_of(message) is not None:
            _set(message, completion=counts_of(message).completion_tokens - latest)
        return (message,)

    return step


def _own_tokens(message: Message) -> None:
    if has_tokens(message):
        _set(message, completion=len(token_ids(message)))


def _at_least_one(message: Message) -> None:
    if is_end(message) and counts_of(message) is not None:
        _set(message, completion=max(1, counts_of(message).completion_tokens))


def _stop_counts(message: Message) -> None:
    if is_end(message) and body(message).WhichOneof("matched_stop"):
        _set(message, completion=body(message).completion_tokens + 1)


def _total_without_prompt(message: Message) -> None:
    if message.HasField("usage"):
        message.usage.total_tokens = message.usage.completion_tokens


def _zero_for_unknown(message: Message) -> None:
    if message.HasField("usage") and not message.usage.HasField("cached_prompt_tokens"):
        message.usage.cached_prompt_tokens = 0


def _unknown_for_zero(message: Message) -> None:
    if message.HasField("usage") and not message.usage.cached_prompt_tokens:
        message.usage.ClearField("cached_prompt_tokens")


def _no_reasoning(message: Message) -> None:
    if message.HasField("usage"):
        message.usage.reasoning_tokens = 0


def _usage_everywhere(message: Message) -> None:
    if not message.HasField("usage"):
        message.usage.completion_tokens = 1


def _unused_error(message: Message) -> None:
    if kind(message) == "error":
        message.ClearField("usage")


def _undrafted(message: Message) -> None:
    if is_end(message):
        message.complete.spec_accepted_tokens = 2


def _cache_fills(call: Call) -> Alteration:
    seen = 0

    def step(message: Message) -> Iterable[Message]:
        nonlocal seen
        body(message).cached_tokens += seen
        seen += 1
        return (message,)

    return step


async def _in_characters(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    async for message in messages:
        if call.request.prompt:
            _set(message, prompt=len(call.request.prompt))
        yield message


sizes_so_far_are_added = Mutant(generate=streamed(_sizes_added))
last_sequence_alone_is_counted = Mutant(generate=streamed(_last_sequence))
all_sequences_are_counted_for_each = Mutant(generate=streamed(_all_sequences))
last_step_is_not_counted = Mutant(generate=streamed(_before_last_step))
running_count_is_that_of_the_chunk = Mutant(generate=each(_own_tokens))
prompt_is_not_counted = Mutant(generate=each(lambda message: _set(message, prompt=0)))
text_prompt_is_counted_in_characters = Mutant(generate=_in_characters)
one_token_is_counted_for_none = Mutant(generate=each(_at_least_one))
excluded_stop_is_counted = Mutant(generate=each(_stop_counts))
total_leaves_out_the_prompt = Mutant(generate=each(_total_without_prompt))
unknown_cache_is_sent_as_zero = Mutant(generate=each(_zero_for_unknown))
empty_cache_is_left_out = Mutant(generate=each(_unknown_for_zero))
reasoning_is_made_up = Mutant(generate=each(_no_reasoning))
usage_is_on_every_message = Mutant(generate=each(_usage_everywhere))
error_has_no_usage = Mutant(generate=each(_unused_error))
cached_count_grows = Mutant(generate=streamed(_cache_fills))

draft_tokens_are_not_counted = Mutant(generate=each(_undrafted))

OPENENGINE = ("openengine",)
SMG = ("smg",)

FAULTS = (
    Fault(
        "usage_is_on_every_message",
        "F076",
        caught_by={"usage/usage_is_on_the_last_message_only": "OE-USE-001"},
        protocols=OPENENGINE,
    ),
    Fault(
        "total_leaves_out_the_prompt",
        caught_by={"usage/counts_match_what_came": "OE-USE-005"},
        protocols=OPENENGINE,
    ),
    Fault(
        "prompt_is_not_counted",
        "F071",
        caught_by={
            "usage/counts_match_what_came": "OE-USE-002 SMG-USE-001",
            "usage/each_prompt_token_counts": "OE-USE-009 SMG-USE-001",
        },
    ),
    Fault(
        "text_prompt_is_counted_in_characters",
        "F071",
        caught_by={"usage/text_prompt_counts_as_tokenized": "OE-USE-009"},
        protocols=OPENENGINE,
    ),
    Fault(
        "error_has_no_usage",
        caught_by={"usage/error_carries_what_was_used": "OE-USE-003"},
        protocols=OPENENGINE,
    ),
    Fault(
        "sizes_so_far_are_added",
        "F069",
        caught_by={"usage/each_completion_token_counts_once": "OE-USE-004 SMG-CMP-008"},
    ),
    Fault(
        "last_step_is_not_counted",
        "F077",
        caught_by={"usage/tokens_of_the_last_step_count": "OE-USE-004 SMG-CMP-008"},
    ),
    Fault(
        "last_sequence_alone_is_counted",
        "F070",
        caught_by={"usage/tokens_of_all_sequences_count": "OE-USE-004 OE-N-007"},
        protocols=OPENENGINE,
    ),
    Fault(
        "all_sequences_are_counted_for_each",
        caught_by={
            "usage/tokens_of_all_sequences_count": "SMG-N-004",
            "usage/running_counts_are_per_sequence": "SMG-CHK-006 SMG-N-004",
        },
        protocols=SMG,
    ),
    Fault(
        "running_count_is_that_of_the_chunk",
        caught_by={"usage/running_counts_are_per_sequence": "SMG-CHK-006"},
        protocols=SMG,
    ),
    Fault(
        "one_token_is_counted_for_none",
        caught_by={"usage/answer_without_tokens_has_counts": "OE-USE-004 SMG-CMP-008"},
    ),
    Fault(
        "excluded_stop_is_counted",
        caught_by={"usage/completion_count_is_the_length_of_the_output": "SMG-CMP-008"},
        protocols=SMG,
    ),
    Fault(
        "unknown_cache_is_sent_as_zero",
        "F072",
        caught_by={"usage/cached_count_is_there_when_known": "OE-USE-008"},
        protocols=OPENENGINE,
    ),
    Fault(
        "empty_cache_is_left_out",
        "F072",
        caught_by={"usage/cached_count_is_there_when_known": "OE-USE-008"},
        protocols=OPENENGINE,
    ),
    Fault(
        "reasoning_is_made_up",
        caught_by={"usage/count_that_no_engine_tells_is_absent": "OE-USE-008"},
        protocols=OPENENGINE,
    ),
    Fault(
        "draft_tokens_are_not_counted",
        caught_by={"usage/speculation_counts_are_consistent": "SMG-CMP-014"},
        protocols=SMG,
    ),
    Fault(
        "cached_count_grows",
        caught_by={"usage/cached_count_is_the_same_throughout": "SMG-USE-004 SMG-CHK-008"},
        protocols=SMG,
    ),
)
