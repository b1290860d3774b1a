"""Faults in what reaches the client of a plain stream: tokens late, lost, doubled, out of order."""

from __future__ import annotations

from collections.abc import AsyncIterator

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


async def _gather(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    for message in [message async for message in messages]:
        yield message


gathers_the_whole_generation = Mutant(generate=_gather)


async def _one_late(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    held: Message | None = None
    async for message in messages:
        if held is not None:
            yield held
        held = message
    if held is not None:
        yield held


looks_one_step_ahead = Mutant(generate=_one_late)

FAULTS = (
    Fault(
        "gathers_the_whole_generation",
        "F015",
        caught_by={
            "first_token/first_token_arrives_while_the_second_is_held": "OE-GEN-018 SMG-GEN-016",
            "first_token/each_token_arrives_while_the_next_is_held": "OE-GEN-018 SMG-GEN-016",
        },
    ),
    Fault(
        "looks_one_step_ahead",
        "F018",
        caught_by={"first_token/each_token_arrives_while_the_next_is_held": "OE-GEN-018 SMG-GEN-016"},
    ),
)
