"""Faults with several sequences: mixed up, lost, misnamed, or all ended by the first end."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    Alteration,
    asked,
    each,
    has_tokens,
    index_of,
    is_end,
    leave_index_zero_out,
    records,
    set_index,
    streamed,
)
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


def _one_offset(call: Call) -> Alteration:
    """Everything of a sequence before an offset counts as sent, but the offset is one for all of them."""
    lengths: dict[int, int] = {}
    sent = 0

    def step(message: Message) -> Iterable[Message]:
        nonlocal sent
        if not has_tokens(message):
            return (message,)
        news = records(message)
        before = lengths.get(index_of(message), 0)
        lengths[index_of(message)] = before + len(news)
        del news[: max(0, min(len(news), sent - before))]
        sent = max(sent, lengths[index_of(message)])
        return (message,) if news else ()

    return step


def _until_the_first_end(call: Call) -> Alteration:
    over = False

    def step(message: Message) -> Iterable[Message]:
        nonlocal over
        if over:
            return ()
        over = is_end(message)
        return (message,)

    return step


def _merged_ends(call: Call) -> Alteration:
    """Only the last sequence that ends says so."""
    left = max(1, _wanted(call.request))

    def step(message: Message) -> Iterable[Message]:
        nonlocal left
        if not is_end(message):
            return (message,)
        left -= 1
        return () if left else (message,)

    return step


def _wanted(request: Message) -> int:
    if hasattr(request, "sampling"):
        return int(request.sampling.num_sequences)
    return int(request.sampling_config.num_return_sequences)


def _ends_by_arrival(call: Call) -> Alteration:
    seen = 0

    def step(message: Message) -> Iterable[Message]:
        nonlocal seen
        if is_end(message):
            set_index(message, seen)
            seen += 1
        return (message,)

    return step


def _endless_without_tokens(call: Call) -> Alteration:
    alive: set[int] = set()

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            alive.add(index_of(message))
        return () if is_end(message) and index_of(message) not in alive else (message,)

    return step


def _two_by_default(request: Message) -> None:
    if hasattr(request, "sampling"):
        request.sampling.num_sequences = request.sampling.num_sequences or 2
    else:
        request.sampling_config.num_return_sequences = request.sampling_config.num_return_sequences or 2


index_is_always_zero = Mutant(generate=each(lambda message: set_index(message, 0)))
index_zero_is_left_out = Mutant(generate=each(leave_index_zero_out))
one_offset_serves_all_sequences = Mutant(generate=streamed(_one_offset))
first_end_is_the_end = Mutant(generate=streamed(_until_the_first_end))
last_end_stands_for_all = Mutant(generate=streamed(_merged_ends))
ends_are_named_by_arrival = Mutant(generate=streamed(_ends_by_arrival))
sequence_without_tokens_never_ends = Mutant(generate=streamed(_endless_without_tokens))
two_sequences_are_the_default = Mutant(generate=asked(_two_by_default))

FAULTS = (
    Fault(
        "index_is_always_zero",
        "F089",
        caught_by={
            "sequences/interleaved_sequences_stay_apart": "OE-GEN-009 SMG-N-002",
            "sequences/each_token_message_names_its_sequence": "OE-GEN-007 SMG-CHK-002",
            "sequences/each_terminal_message_names_its_sequence": "OE-GEN-008 SMG-N-001",
        },
    ),
    Fault(
        "index_zero_is_left_out",
        "F089",
        caught_by={
            "sequences/each_token_message_names_its_sequence": "OE-GEN-007",
            "sequences/each_terminal_message_names_its_sequence": "OE-GEN-008",
        },
        protocols=("openengine",),
    ),
    Fault(
        "one_offset_serves_all_sequences",
        "F090",
        caught_by={
            "sequences/interleaved_sequences_stay_apart": "OE-GEN-009 SMG-N-002",
            "sequences/deltas_of_unequal_sequences_stay_apart": "OE-TOK-010 SMG-N-002",
        },
    ),
    Fault(
        "first_end_is_the_end",
        "F091",
        caught_by={
            "sequences/early_end_of_one_sequence_leaves_the_others": "OE-GEN-013 SMG-N-003",
            "sequences/sequences_end_in_any_order": "OE-N-005 SMG-N-003",
        },
    ),
    Fault(
        "last_end_stands_for_all",
        caught_by={
            "sequences/ends_in_one_step_are_told_one_by_one": "OE-N-006 SMG-CMP-002",
            "sequences/each_sequence_that_was_asked_for_comes": "OE-N-003 SMG-N-001",
        },
    ),
    Fault(
        "last_end_stands_for_all",
        caught_by={"sequences/each_sequence_comes_without_streaming": "SMG-N-001"},
        protocols=("smg",),
    ),
    Fault(
        "ends_are_named_by_arrival",
        caught_by={"sequences/sequences_end_in_any_order": "OE-N-005 SMG-N-003"},
    ),
    Fault(
        "sequence_without_tokens_never_ends",
        caught_by={"sequences/sequence_without_tokens_ends_too": "OE-GEN-011 SMG-CMP-002"},
    ),
    Fault(
        "two_sequences_are_the_default",
        caught_by={"sequences/absent_number_means_one_sequence": "OE-N-001 SMG-SMP-004"},
    ),
)
