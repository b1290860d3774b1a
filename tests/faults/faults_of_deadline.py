"""Faults about deadlines: one that is passed off as an error of the request, and one that is taken for a short one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

EARLY = 0.15
"""Seconds before the deadline at which a server gives up by itself."""
INT32 = 2**31


async def _give_up_early(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    loop = asyncio.get_running_loop()
    until = loop.time() + call.context.time_remaining() - EARLY
    while True:
        try:
            yield await asyncio.wait_for(anext(messages), max(0.0, until - loop.time()))
        except StopAsyncIteration:
            return
        except asyncio.TimeoutError:
            break
    if call.wire.traits.errors_in_band:
        message = call.wire.generate.response(request_id=call.request.request_id)
        message.error.message = "the deadline has passed"
        yield message


ends_a_late_call_by_itself = Mutant(generate=_give_up_early)


async def _overflow(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    remaining = call.context.time_remaining()
    milliseconds = 0 if remaining is None else int(remaining * 1000)
    if (milliseconds + INT32) % (2 * INT32) - INT32 < 0:
        await call.context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the deadline has passed")
    async for message in messages:
        yield message


keeps_deadlines_in_32_bits = Mutant(generate=_overflow)

FAULTS = (
    Fault(
        "ends_a_late_call_by_itself",
        caught_by={"deadline/deadline_ends_a_call_by_its_status": "OE-ERR-003 SMG-ERR-001"},
    ),
    Fault(
        "keeps_deadlines_in_32_bits",
        "F115",
        caught_by={"deadline/far_deadline_does_not_end_a_call": "GRPC-DL-19"},
    ),
)
