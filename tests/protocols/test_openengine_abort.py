"""Aborts by the Control service."""

from __future__ import annotations

from typing import Any

import grpc
import pytest
from openengine_serving import (
    ABORTED,
    ALREADY_FINISHED,
    CANCELLED,
    THREE,
    abort,
    events,
    libraries,
    message,
    serving,
    status_of,
    within,
)
from scripted_engine import ScriptedEngine, ScriptedGeneration

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    AbortConduct,
    Ending,
    Finish,
    FinishReason,
    Prompt,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.engines.script import script as make_script
from pytest_grpc_conformance.protocols.base import ErrorEvent, FinishEvent, Request, TokensEvent
from pytest_grpc_conformance.protocols.openengine import OPENENGINE
from pytest_grpc_conformance.protocols.openengine.bindings import (
    lifecycle_pb2,
)
from pytest_grpc_conformance.protocols.openengine.state import ServerState


@libraries
@pytest.mark.parametrize("conduct", [AbortConduct.FINISH, AbortConduct.SILENT])
@pytest.mark.parametrize("tokens_before", [0, 2])
@pytest.mark.asyncio
async def test_an_abort_ends_the_stream(library: str, conduct: AbortConduct, tokens_before: int) -> None:
    engine = ScriptedEngine(script=THREE.but(abort=conduct), held=True)
    async with serving(engine, library) as served:
        call = served.call(message())
        generation = await within(engine.submissions.get())
        generation.release(tokens_before)
        received = [OPENENGINE.to_event(await call.read()) for _ in range(tokens_before)]
        assert await abort(served, request_id="r") == ABORTED
        last = OPENENGINE.to_event(await call.read())
        assert await call.code() is grpc.StatusCode.OK
        assert await abort(served, request_id="r") == ALREADY_FINISHED
    assert all(isinstance(event, TokensEvent) for event in received)
    if conduct is AbortConduct.FINISH:
        assert isinstance(last, FinishEvent)
        assert (last.index, last.finish) == (0, CANCELLED)
    else:
        assert isinstance(last, ErrorEvent)
        assert last.code == "CANCELLED"
    assert last.usage is not None
    assert last.usage.completion == tokens_before
    assert generation.aborts == 1


@pytest.mark.asyncio
async def test_an_abort_is_idempotent_and_reaches_the_engine_once() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    state = ServerState(engine)
    active = state.admit("r")
    assert active is not None
    active.generation = engine.submit("r", Prompt((1,)), GenerationParameters())
    active.abort()
    active.abort()
    state.release(active)
    state.release(active)
    assert engine.generations[0].aborts == 1
    assert state.is_over("r")


@pytest.mark.asyncio
async def test_an_abort_ends_all_sequences_that_are_open() -> None:
    played = make_script(side_by_side(tokens(1), tokens(3, start=200), tokens(3, start=300)))
    engine = ScriptedEngine(script=played, held=True)
    async with serving(engine) as served:
        call = served.call(message(Request("r", num_sequences=3)))
        generation = await within(engine.submissions.get())
        generation.release()
        for _ in range(4):
            await call.read()
        assert await abort(served, request_id="r") == ABORTED
        last: list[Any] = [OPENENGINE.to_event(await call.read()) for _ in range(2)]
        assert await call.code() is grpc.StatusCode.OK
    assert [(event.index, event.finish) for event in last] == [(1, CANCELLED), (2, CANCELLED)]
    assert [event.usage is not None for event in last] == [False, True]


@pytest.mark.asyncio
async def test_an_abort_touches_its_target_only() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine) as served:
        calls = [served.call(message(Request(request_id))) for request_id in ("r1", "r12")]
        generations = {}
        for _ in calls:
            generation = await within(engine.submissions.get())
            generations[generation.request_id] = generation
        assert await abort(served, request_id="r1") == ABORTED
        generations["r12"].release(3)
        ended, whole = await events(calls[0]), await events(calls[1])
        assert (len(ended), ended[0].finish) == (1, CANCELLED)
        assert (len(whole), whole[-1].finish) == (4, Finish(FinishReason.LENGTH))
        assert generations["r12"].aborts == 0


@libraries
@pytest.mark.asyncio
async def test_all_requests(library: str) -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine, library) as served:
        assert await abort(served, all_requests=lifecycle_pb2.AllRequests()) == ALREADY_FINISHED
        calls = [served.call(message(Request(f"r{number}"))) for number in range(3)]
        for _ in calls:
            await within(engine.submissions.get())
        assert await abort(served, all_requests=lifecycle_pb2.AllRequests()) == ABORTED
        for call in calls:
            assert [event.finish for event in await events(call)] == [CANCELLED]
        assert [generation.aborts for generation in engine.generations] == [1, 1, 1]
        assert await abort(served, all_requests=lifecycle_pb2.AllRequests()) == ALREADY_FINISHED


class LateAbort(ScriptedGeneration):
    """Takes an abort when its own end is on the way already, which then arrives."""

    def abort(self) -> None:
        self.aborts += 1
        self.abort_seen.set()
        self.release(3)


@pytest.mark.asyncio
async def test_whoever_was_told_aborted_sees_it() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine) as served:
        call = served.call(message())
        generation = await within(engine.submissions.get())
        generation.__class__ = LateAbort
        assert await abort(served, request_id="r") == ABORTED
        received = await events(call)
    assert [event.finish for event in received if isinstance(event, FinishEvent)] == [CANCELLED]
    assert received[-1].usage is not None


@pytest.mark.asyncio
async def test_an_abort_that_the_engine_refuses() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    engine.scripts["stubborn"] = THREE.but(abort=AbortConduct.REFUSE)
    async with serving(engine) as served:
        stubborn, other = served.call(message(Request("stubborn"))), served.call(message(Request("other")))
        generations = {}
        for _ in range(2):
            generation = await within(engine.submissions.get())
            generations[generation.request_id] = generation
        assert await status_of(abort(served, request_id="stubborn")) is grpc.StatusCode.INTERNAL
        everything = abort(served, all_requests=lifecycle_pb2.AllRequests())
        assert await status_of(everything) is grpc.StatusCode.INTERNAL
        assert [event.finish for event in await events(other)] == [CANCELLED]
        generations["stubborn"].release(3)
        assert (await events(stubborn))[-1].finish == Finish(FinishReason.LENGTH)


@pytest.mark.parametrize(
    ("target", "code"),
    [
        ({}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"request_id": ""}, grpc.StatusCode.INVALID_ARGUMENT),
        ({"request_id": "never seen"}, grpc.StatusCode.NOT_FOUND),
        ({"kv_session": {"session_id": "1"}}, grpc.StatusCode.UNIMPLEMENTED),
    ],
)
@pytest.mark.asyncio
async def test_aborts_without_a_target(target: dict[str, Any], code: grpc.StatusCode) -> None:
    async with serving(ScriptedEngine()) as served:
        assert await status_of(abort(served, **target)) is code


@pytest.mark.asyncio
async def test_ended_requests_are_remembered_and_refused_ones_are_not() -> None:
    engine = ScriptedEngine(script=THREE)
    async with serving(engine) as served:
        for ending in (Ending.LENGTH, Ending.FAILURE):
            engine.script = THREE.but(ending=ending)
            await events(served.call(message(Request(f"r {ending.value}"))))
            assert await abort(served, request_id=f"r {ending.value}") == ALREADY_FINISHED
        with pytest.raises(grpc.aio.AioRpcError):
            await events(served.call(message(Request("refused", num_sequences=0))))
        assert await status_of(abort(served, request_id="refused")) is grpc.StatusCode.NOT_FOUND
        assert [generation.aborts for generation in engine.generations] == [0, 0]


def test_the_memory_is_bounded() -> None:
    engine = ScriptedEngine()
    state = ServerState(engine, remembered=2)
    for request_id in ("a", "b", "a", "c"):
        active = state.admit(request_id)
        assert active is not None
        active.aborted = True
        state.release(active)
    assert [state.is_over(request_id) for request_id in ("a", "b", "c")] == [True, False, True]


def test_a_request_that_is_aborted_before_the_engine_has_it_is_remembered() -> None:
    state = ServerState(ScriptedEngine())
    active = state.admit("r")
    assert active is not None
    active.abort()
    state.release(active)
    assert state.is_over("r")
