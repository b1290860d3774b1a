"""Faults in when tokens leave: only with the next message, only at the end, or only after another sequence."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import Alteration, copy, has_tokens, index_of, is_end, records, streamed
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


async def _gather(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    for message in [message async for message in messages]:
        yield message


def _one_late(call: Call) -> Alteration:
    """Each message waits for the next one."""
    held: list[Message] = []

    def step(message: Message) -> Iterable[Message]:
        out = [*held]
        held[:] = [message]
        if is_end(message):
            out.append(held.pop())
        return out

    return step


def _one_late_with_stops(call: Call) -> Alteration:
    stops = call.request.stopping.conditions if hasattr(call.request, "stopping") else call.request.stop
    return _one_late(call) if stops else lambda message: (message,)


def _rest_of_a_step_late(call: Call) -> Alteration:
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


def _one_sequence_after_another(call: Call) -> Alteration:
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


gathers_the_whole_generation = Mutant(generate=_gather)
looks_one_step_ahead = Mutant(generate=streamed(_one_late))
holds_back_whenever_there_is_a_stop = Mutant(generate=streamed(_one_late_with_stops))
sends_the_rest_of_a_step_later = Mutant(generate=streamed(_rest_of_a_step_late))
sends_one_sequence_after_another = Mutant(generate=streamed(_one_sequence_after_another))

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
)
