"""Faults with clients that do not read: output piles up, is thrown away, or one such client stops the others."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import has_tokens
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

AHEAD = 200
"""Messages that a server queues which counts them, but not their bytes."""
ROOM = 16


async def _run_ahead(messages: AsyncIterator[Message], call: Call, *, drop: bool) -> AsyncIterator[Message]:
    """Take from the engine while the client reads, until there is no room; then ``drop`` output or wait."""
    waiting: deque[Message] = deque()
    changed = asyncio.Event()

    async def pump() -> None:
        try:
            async for message in messages:
                while not drop and len(waiting) >= AHEAD:
                    changed.clear()
                    await changed.wait()
                if not drop or len(waiting) < ROOM or not has_tokens(message):
                    waiting.append(message)
                changed.set()
                await asyncio.sleep(0)
        finally:
            changed.set()

    pumping = asyncio.ensure_future(pump())
    try:
        while waiting or not pumping.done():
            if waiting:
                yield waiting.popleft()
                changed.set()
            else:
                changed.clear()
                await changed.wait()
        await pumping
    finally:
        pumping.cancel()


async def _queue(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    async for message in _run_ahead(messages, call, drop=False):
        yield message


queues_without_bound_in_bytes = Mutant(generate=_queue)


async def _drop(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    async for message in _run_ahead(messages, call, drop=True):
        yield message


drops_what_a_slow_client_does_not_take = Mutant(generate=_drop)


async def _one_at_a_time(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    lock: asyncio.Lock = call.engine.__dict__.setdefault("lock", asyncio.Lock())
    async for message in messages:
        async with lock:
            yield message


sends_for_one_client_at_a_time = Mutant(generate=_one_at_a_time)

FAULTS = (
    Fault(
        "queues_without_bound_in_bytes",
        "F124",
        caught_by={"slow_reader/slow_reader_does_not_fill_the_server": "GRPC-FAIR-04"},
    ),
    Fault(
        "drops_what_a_slow_client_does_not_take",
        caught_by={"slow_reader/slow_reader_gets_everything_once_it_reads": "GRPC-FAIR-05"},
    ),
    Fault(
        "sends_for_one_client_at_a_time",
        "F125",
        caught_by={
            "slow_reader/slow_reader_does_not_stop_a_stream_beside_it": "GRPC-FAIR-03",
            "slow_reader/slow_readers_do_not_stop_other_clients": "GRPC-FAIR-01",
        },
    ),
)
