"""Faults in what reaches the client of a plain stream: tokens late, lost, doubled, out of order, or badly labelled."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any

from pytest_grpc_conformance.engines.gated import GatedEngine, GatedGeneration
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import (
    RememberingEngine,
    body,
    each,
    has_tokens,
    index_of,
    is_end,
    streamed,
    without,
)
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

Step = Callable[[Message], Iterable[Message]]


def copy(message: Message) -> Message:
    """A message of its own with the same content."""
    other = type(message)()
    other.CopyFrom(message)
    return other


def records(message: Message) -> Any:
    """The repeated field with the tokens of a token message."""
    part = body(message)
    return part.token_ids if hasattr(part, "token_ids") else part.tokens


def is_empty(message: Message) -> bool:
    """Whether a token message holds nothing any more."""
    return not records(message) and not getattr(body(message), "text", "")


# Late.


async def _gather(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    for message in [message async for message in messages]:
        yield message


def one_late(call: Call) -> Step:
    """Each message waits for the next one."""
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        out = [*held]
        held[:] = [message]
        if is_end(message):
            out.append(held.pop())
        return out

    return step


def _one_late_with_stops(call: Call) -> Step:
    stops = call.request.stopping.conditions if hasattr(call.request, "stopping") else call.request.stop
    return one_late(call) if stops else lambda message: (message,)


def _rest_of_a_step_late(call: Call) -> Step:
    """The first token of a step goes out at once, the others with the next message."""
    rest: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        out = [*rest, message]
        rest.clear()
        if has_tokens(message) and len(records(message)) > 1:
            later = copy(message)
            del records(message)[1:]
            del records(later)[0]
            rest.append(later)
        return out

    return step


def _one_sequence_after_another(call: Call) -> Step:
    """What is of another sequence than the first waits until that one has ended."""
    waiting: list[Message] = []
    over = False

    def step(message: Message) -> Iterable[Message]:
        nonlocal over
        if index_of(message) and not over:
            waiting.append(message)
            return ()
        over = over or is_end(message)
        out = [message, *waiting] if over else [message]
        if over:
            waiting.clear()
        return out

    return step


# Lost, doubled, out of order.


def _all_ids_so_far(call: Call) -> Step:
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


def _neighbours_swapped(call: Call) -> Step:
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


def _without_id_zero(call: Call) -> Step:
    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            kept = [record for record in records(message) if getattr(record, "token_id", record) != 0]
            del records(message)[:]
            records(message).extend(kept)
        return (message,)

    return step


def _without_what_came_at_once(call: Call) -> Step:
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


def _without_the_last_tokens(call: Call) -> Step:
    """The tokens of the finishing step are in the terminal message at most."""
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        if is_end(message):
            held.clear()
            return (message,)
        held.append(message)
        return [held.pop(0)] if len(held) > 1 else ()

    return step


def _repeated_in_the_terminal(call: Call) -> Step:
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


def _resent_after_a_trim(call: Call) -> Step:
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


def _with_empty_messages(call: Call) -> Step:
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


# Labels.


def _opening_without_event(call: Call) -> Step:
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


def _unnamed_zero(message: Message) -> None:
    if getattr(body(message), "output_index", None) == 0:
        body(message).ClearField("output_index")


def _with_prompt(call: Call) -> Step:
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


def _with_handoff(call: Call) -> Step:
    def step(message: Message) -> Iterable[Message]:
        if not is_end(message):
            return (message,)
        handoff = type(message)(request_id=message.request_id)
        handoff.prefill_ready.SetInParent()
        return (handoff, message)

    return step


def _terminal_overtakes(call: Call) -> Step:
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


def _usage_of(message: Message) -> Any:
    return message.usage if hasattr(message, "usage") and message.HasField("usage") else body(message)


def _count_short(message: Message) -> None:
    usage = _usage_of(message)
    if getattr(usage, "completion_tokens", 0):
        usage.completion_tokens -= 1


def _no_prompt_count(message: Message) -> None:
    if has_tokens(message):
        body(message).prompt_tokens = 0


def _cached_on_the_terminal(message: Message) -> None:
    if is_end(message):
        body(message).cached_tokens += 1


def _chunk_first(call: Call) -> Step:
    """Whether streaming was asked for is not looked at."""

    def step(message: Message) -> Iterable[Message]:
        if not is_end(message) or call.request.streaming:
            return (message,)
        chunk = type(message)(request_id=message.request_id)
        chunk.chunk.token_ids.extend(body(message).output_token_ids)
        chunk.chunk.sequence_index = index_of(message)
        return (chunk, message)

    return step


gathers_the_whole_generation = Mutant(generate=_gather)
looks_one_step_ahead = Mutant(generate=streamed(one_late))
holds_back_whenever_there_is_a_stop = Mutant(generate=streamed(_one_late_with_stops))
sends_the_rest_of_a_step_later = Mutant(generate=streamed(_rest_of_a_step_late))
sends_one_sequence_after_another = Mutant(generate=streamed(_one_sequence_after_another))
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
opens_without_an_event = Mutant(generate=streamed(_opening_without_event))
forgets_the_request_id_at_the_end = Mutant(generate=each(_forget_id))
leaves_index_zero_out = Mutant(generate=each(_unnamed_zero))
always_sends_the_prompt = Mutant(generate=streamed(_with_prompt))
always_sends_a_handoff = Mutant(generate=streamed(_with_handoff))
terminal_overtakes_the_last_tokens = Mutant(generate=streamed(_terminal_overtakes))
counts_one_token_less = Mutant(generate=each(_count_short))
chunks_lack_the_prompt_count = Mutant(generate=each(_no_prompt_count))
cached_count_changes_at_the_end = Mutant(generate=each(_cached_on_the_terminal))
streams_unasked = Mutant(generate=streamed(_chunk_first))

AT_ONCE = "OE-GEN-018 SMG-GEN-016"

FAULTS = (
    Fault(
        "gathers_the_whole_generation",
        "F015",
        caught_by={"first_token/first_token_arrives_while_the_second_is_held": AT_ONCE},
    ),
    Fault(
        "looks_one_step_ahead",
        "F018",
        caught_by={"first_token/each_token_arrives_while_the_next_is_held": AT_ONCE},
    ),
    Fault(
        "holds_back_whenever_there_is_a_stop",
        "F017",
        caught_by={"first_token/stop_text_that_cannot_match_delays_nothing": AT_ONCE},
    ),
    Fault(
        "sends_the_rest_of_a_step_later",
        caught_by={"first_token/all_tokens_of_a_step_arrive_while_the_next_is_held": AT_ONCE},
    ),
    Fault(
        "sends_one_sequence_after_another",
        caught_by={"first_token/each_sequence_arrives_while_the_other_is_held": AT_ONCE},
    ),
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
        "terminal_overtakes_the_last_tokens",
        caught_by={
            "delivery/terminal_message_is_the_last": "OE-GEN-012 SMG-GEN-010",
            "delivery/finished_sequence_says_nothing_more": "OE-GEN-010 SMG-CHK-005",
        },
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
