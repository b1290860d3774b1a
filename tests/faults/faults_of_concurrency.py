"""Faults between streams: one gets what is another's, or waits for another."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from weakref import WeakKeyDictionary

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import Alteration, copy, has_tokens, records, streamed
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault

_latest: WeakKeyDictionary[GatedEngine, Message] = WeakKeyDictionary()
_turn: WeakKeyDictionary[GatedEngine, asyncio.Lock] = WeakKeyDictionary()


def _shared_record(call: Call) -> Alteration:
    """Tokens are handed over in one place for all streams, and a stream reads what stood there before."""

    def step(message: Message) -> Iterable[Message]:
        if has_tokens(message):
            before = _latest.get(call.engine)
            _latest[call.engine] = copy(message)
            if before is not None:
                del records(message)[:]
                records(message).extend(records(before))
        return (message,)

    return step


def _shared_id(call: Call) -> Alteration:
    """Messages carry the id of the request that came last."""
    _latest[call.engine] = call.request

    def step(message: Message) -> Iterable[Message]:
        message.request_id = _latest[call.engine].request_id
        return (message,)

    return step


async def _one_at_a_time(messages: AsyncIterator[Message], call: Call) -> AsyncIterator[Message]:
    async with _turn.setdefault(call.engine, asyncio.Lock()):
        async for message in messages:
            yield message


streams_share_one_record = Mutant(generate=streamed(_shared_record))
streams_share_one_id = Mutant(generate=streamed(_shared_id))
serves_one_request_at_a_time = Mutant(generate=_one_at_a_time)

APART = "OE-GEN-019 SMG-GEN-017"

FAULTS = (
    Fault(
        "streams_share_one_record",
        caught_by={
            "concurrency/streams_do_not_mix": APART,
            "concurrency/streams_that_all_run_freely_do_not_mix": APART,
        },
    ),
    Fault("streams_share_one_id", caught_by={"concurrency/streams_do_not_mix": APART}),
    Fault(
        "serves_one_request_at_a_time",
        "F134",
        caught_by={"concurrency/held_stream_holds_no_other": "OE-GEN-018 SMG-GEN-016"},
    ),
)
