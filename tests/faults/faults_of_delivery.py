"""Faults in what reaches the client of a plain stream: tokens lost, doubled, empty, or out of order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from pytest_grpc_conformance.engines.gated import GatedEngine, GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    Alteration,
    RememberingEngine,
    body,
    copy,
    each,
    has_tokens,
    index_of,
    is_end,
    records,
    streamed,
    without,
)
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

# Lost, doubled, out of order.


def _all_ids_so_far(call: Call) -> Alteration:
    so_far: dict[int, Message] = {}

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            whole = so_far.setdefault(index_of(message), copy(message))
            if whole != message:
                records(whole).extend(records(message))
            del records(message)[:]
            records(message).extend(records(whole))
        return (message,)

    return step


def _neighbours_swapped(call: Call) -> Alteration:
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        held.append(message)
        if len(held) < 2 and not is_end(message):
            return ()
        out = held[::-1] if not is_end(message) else held[:]
        held.clear()
        return out

    return step


def _last_id_of_a_step(message: Message) -> None:
    if has_tokens(message):
        del records(message)[:-1]


def _without_id_zero(call: Call) -> Alteration:
    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            kept = [record for record in records(message) if getattr(record, "token_id", record) != 0]
            del records(message)[:]
            records(message).extend(kept)
        return (message,)

    return step


def _without_what_came_at_once(call: Call) -> Alteration:
    """The queue is registered once ``submit`` has returned; what the engine has said by then is lost."""
    assert isinstance(call.engine, RememberingEngine)
    gate = call.engine.gates[call.request.request_id]
    lost = gate.released == gate.steps

    def step(message: Message) -> Iterable[Message]:
        nonlocal lost
        if lost and has_tokens(message):
            lost = False
            return ()
        return (message,)

    return step


def _without_the_last_tokens(call: Call) -> Alteration:
    """The tokens of the finishing step are in the terminal message at most."""
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if is_end(message):
            held.clear()
            return (message,)
        held.append(message)
        return [held.pop(0)] if len(held) > 1 else ()

    return step


def _repeated_in_the_terminal(call: Call) -> Alteration:
    last: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            last[:] = [copy(message)]
            return (message,)
        if is_end(message) and hasattr(body(message), "output_token_ids"):
            body(message).output_token_ids.extend(list(body(message).output_token_ids))
            return (message,)
        # No field of a terminal message could hold it, so it goes out once more on its own.
        return [*last, message]

    return step


def _resent_after_a_trim(call: Call) -> Alteration:
    """A count of what was sent that runs ahead of the trimmed list is taken for a negative one."""
    last: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            last[:] = [copy(message)]
            return (message,)
        end = body(message)
        text = end.stop_match.stop_text if hasattr(end, "stop_match") else getattr(end, "matched_stop_str", "")
        return [*last, message] if text else (message,)

    return step


# Empty steps.


class _EndsWhenEmpty:
    """A generation that takes a result without news for its end."""

    def __init__(self, generation: GatedGeneration) -> None:
        self._generation = generation

    def __getattr__(self, name: str) -> Any:
        return getattr(self._generation, name)

    def __aiter__(self) -> _EndsWhenEmpty:
        return self

    async def __anext__(self) -> _EndsWhenEmpty:
        before = [len(sequence.tokens) for sequence in self._generation.sequences]
        await anext(self._generation)
        after = [len(sequence.tokens) for sequence in self._generation.sequences]
        if before == after and not self._generation.finished:
            raise StopAsyncIteration
        return self


class _EmptyIsTheEnd(GatedEngine):
    def submit(self, request_id: str, prompt: Prompt, parameters: GenerationParameters) -> Any:
        return _EndsWhenEmpty(super().submit(request_id, prompt, parameters))


def _with_empty_messages(call: Call) -> Alteration:
    def step(message: Message) -> Iterable[Message]:
        if not has_tokens(message):
            return (message,)
        empty = copy(message)
        del records(empty)[:]
        for name in ("text", "logprobs"):
            if hasattr(body(empty), name):
                body(empty).ClearField(name)
        return (message, empty)

    return step


def _terminal_overtakes(call: Call) -> Alteration:
    """The last tokens of a sequence come after its terminal message."""
    held: dict[int, Message] = {}

    def step(message: Message) -> Iterable[Message]:
        index = index_of(message)
        late = held.pop(index, None)
        if has_tokens(message):
            held[index] = message
            return () if late is None else (late,)
        return (message,) if late is None else (message, late)

    return step


sends_all_ids_so_far = Mutant(generate=streamed(_all_ids_so_far))
swaps_neighbours = Mutant(generate=streamed(_neighbours_swapped))
sends_the_last_id_of_a_step_only = Mutant(generate=each(_last_id_of_a_step))
takes_id_zero_for_no_token = Mutant(generate=streamed(_without_id_zero))
registers_after_the_submission = Mutant(generate=streamed(_without_what_came_at_once), engine=RememberingEngine)
last_tokens_are_in_the_terminal_only = Mutant(generate=streamed(_without_the_last_tokens))
terminal_repeats_the_output = Mutant(generate=streamed(_repeated_in_the_terminal))
sends_again_after_a_trim = Mutant(generate=streamed(_resent_after_a_trim))
takes_an_empty_step_for_the_end = Mutant(engine=_EmptyIsTheEnd)
sends_empty_messages = Mutant(generate=streamed(_with_empty_messages))
answers_nothing = Mutant(generate=without(lambda message: True))
terminal_overtakes_the_last_tokens = Mutant(generate=streamed(_terminal_overtakes))

FAULTS = (
    Fault(
        "sends_all_ids_so_far",
        "F002",
        caught_by={"delivery/each_step_brings_its_own_tokens_only": "OE-TOK-001 SMG-CHK-001"},
    ),
    Fault(
        "swaps_neighbours",
        "F010",
        caught_by={"delivery/tokens_come_in_order_with_nothing_lost_or_doubled": "OE-GEN-020 SMG-CHK-003"},
    ),
    Fault(
        "sends_the_last_id_of_a_step_only",
        "F001",
        caught_by={"delivery/step_of_several_tokens_brings_all_of_them": "OE-TOK-004 SMG-CHK-001"},
    ),
    Fault(
        "takes_id_zero_for_no_token",
        "F006",
        caught_by={"delivery/token_id_zero_is_a_token": "OE-TOK-004 SMG-CHK-003"},
    ),
    Fault(
        "registers_after_the_submission",
        "F009",
        caught_by={"delivery/answer_given_inside_submit_is_whole": "OE-TOK-001 SMG-CHK-003"},
    ),
    Fault(
        "last_tokens_are_in_the_terminal_only",
        "F004",
        caught_by={"delivery/tokens_of_the_last_step_come_as_tokens": "OE-TOK-001 SMG-CHK-004"},
    ),
    Fault(
        "terminal_repeats_the_output",
        "F005",
        caught_by={"delivery/terminal_message_repeats_nothing": "OE-TOK-002 SMG-CMP-001"},
    ),
    Fault(
        "sends_again_after_a_trim",
        caught_by={"delivery/trimmed_stop_takes_nothing_back": "OE-TOK-017 SMG-CHK-012"},
    ),
    Fault(
        "takes_an_empty_step_for_the_end",
        "F047",
        caught_by={"delivery/empty_step_does_not_end_the_stream": "OE-GEN-017 SMG-GEN-012"},
    ),
    Fault(
        "sends_empty_messages",
        caught_by={"delivery/token_messages_are_not_empty": "OE-TOK-009 SMG-CHK-010"},
    ),
    Fault(
        "answers_nothing",
        caught_by={"delivery/accepted_request_is_answered_as_a_stream": "OE-GEN-001 SMG-GEN-002"},
    ),
    Fault(
        "terminal_overtakes_the_last_tokens",
        caught_by={
            "delivery/terminal_message_is_the_last": "OE-GEN-012 SMG-GEN-010",
            "delivery/finished_sequence_says_nothing_more": "OE-GEN-010 SMG-CHK-005",
        },
    ),
)
