"""How streams of the reference servicer end when something goes wrong, and what the engine sees of it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import cast

import grpc
import pytest
from openengine_serving import (
    PLAIN,
    THREE,
    CallContext,
    collect,
    error_of,
    libraries,
    message,
    serving,
    within,
)
from scripted_engine import ScriptedEngine, ScriptedGeneration

from pytest_grpc_conformance.engines.base import (
    EngineDown,
    EngineFailure,
    EngineFull,
    InvalidRequest,
    SequenceState,
)
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.script import (
    AbortConduct,
    Advance,
    Ending,
    Finish,
    FinishReason,
    Script,
    Step,
    Token,
    one_by_one,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.protocols.base import Usage
from pytest_grpc_conformance.protocols.openengine.servicer import InferenceServicer
from pytest_grpc_conformance.protocols.openengine.state import ServerState


@libraries
@pytest.mark.parametrize("tokens_before", [0, 1])
@pytest.mark.asyncio
async def test_cancelling_aborts_the_engine_once(library: str, tokens_before: int) -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine, library) as served:
        call = served.call(message())
        generation = await within(engine.submissions.get())
        generation.release(tokens_before)
        for _ in range(tokens_before):
            await call.read()
        call.cancel()
        await within(generation.abort_seen.wait())
        again = served.call(message())
        second = await within(engine.submissions.get())
        second.release(3)
        assert len([response async for response in again]) == 4
    assert (generation.aborts, second.aborts) == (1, 0)


@libraries
@pytest.mark.asyncio
async def test_a_deadline_aborts_the_engine_once(library: str) -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine, library) as served:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(message(), timeout=0.3)
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        generation = await within(engine.submissions.get())
        await within(generation.abort_seen.wait())
    assert generation.aborts == 1


@libraries
@pytest.mark.asyncio
async def test_cancelling_a_client_that_does_not_read(library: str) -> None:
    """The generator waits in ``yield`` then, and nothing throws into it."""
    steps = one_by_one([Token(5, b"x" * 50_000)] * 40)
    engine = ScriptedEngine(script=script(steps, ending=Ending.NOTHING), held=True)
    async with serving(engine, library) as served:
        call = served.call(message())
        generation = await within(engine.submissions.get())
        generation.release(40)
        await call.read()
        call.cancel()
        await within(generation.abort_seen.wait())
    assert generation.aborts == 1


@pytest.mark.asyncio
async def test_a_generator_closed_in_yield_and_the_late_callback() -> None:
    engine = ScriptedEngine(script=THREE)
    state = ServerState(engine)
    servicer = InferenceServicer(state)
    context = CallContext()
    stream = servicer.Generate(message(), context)
    await anext(stream)
    # The RPC is over, the generator is not closed yet, and the id is taken again.
    context.callbacks[0](context)
    newer = servicer.Generate(message(), CallContext())
    await anext(newer)
    await stream.aclose()  # type: ignore[attr-defined]
    assert [active.generation for active in state.active] == [engine.generations[1]]
    assert [generation.aborts for generation in engine.generations] == [1, 0]
    async for _ in newer:
        pass
    assert state.active == []
    assert [generation.aborts for generation in engine.generations] == [1, 0]


@pytest.mark.asyncio
async def test_a_generator_closed_without_any_callback() -> None:
    state = ServerState(ScriptedEngine(script=THREE))
    stream = InferenceServicer(state).Generate(message(), CallContext())
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert state.active == []
    assert [generation.aborts for generation in cast(ScriptedEngine, state.engine).generations] == [1]


@pytest.mark.asyncio
async def test_a_generator_cancelled_in_silence_without_any_callback() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    state = ServerState(engine)
    waiting = asyncio.ensure_future(anext(InferenceServicer(state).Generate(message(), CallContext())))
    generation = await within(engine.submissions.get())
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert state.active == []
    assert generation.aborts == 1


@pytest.mark.asyncio
async def test_a_refused_abort_of_an_abandoned_request() -> None:
    engine = ScriptedEngine(script=THREE.but(abort=AbortConduct.REFUSE), held=True)
    async with serving(engine) as served:
        call = served.call(message())
        generation = await within(engine.submissions.get())
        call.cancel()
        await within(generation.abort_seen.wait())
        again = served.call(message())
        second = await within(engine.submissions.get())
        second.release(3)
        assert len([response async for response in again]) == 4
    assert generation.aborts == 1


@libraries
@pytest.mark.parametrize("tokens_before", [0, 2])
@pytest.mark.asyncio
async def test_an_engine_failure_is_one_error_and_ok(library: str, tokens_before: int) -> None:
    played = script(
        one_by_one(tokens(tokens_before)), ending=Ending.FAILURE, failure="SECRET /opt/engine.py 50%\n" + "x" * 65536
    )
    engine = ScriptedEngine(script=played)
    async with serving(engine, library) as served:
        received = await served.generate(message())
        error = error_of(received)
        assert (error.code, error.retryable) == ("INTERNAL", False)
        assert error.usage == Usage(3, tokens_before, 0, 3 + tokens_before)
        assert len(received) == tokens_before + 1
        assert "SECRET" not in str(received)
        assert ".py" not in error.message
        engine.script = THREE
        assert len(await served.generate(message())) == 4
    assert engine.generations[0].aborts == 0


@pytest.mark.asyncio
async def test_a_failure_ends_all_outputs_and_leaves_finished_ones() -> None:
    played = script(
        side_by_side(tokens(1), tokens(2, start=200))[0],
        Step((Advance(1, tokens(1, start=300)),)),
        ending=Ending.FAILURE,
    )
    received = await collect(ScriptedEngine(script=played), message(replace(PLAIN, num_sequences=2)))
    kinds = [response.WhichOneof("event") for response in received]
    assert kinds == ["token", "finished", "token", "token", "error"]
    assert error_of(received).usage == Usage(3, 3, 0, 6)


@pytest.mark.asyncio
async def test_an_early_end_is_an_error() -> None:
    engine = ScriptedEngine(script=THREE.but(ending=Ending.NOTHING, cached_tokens=None))
    error = error_of(await collect(engine, message()))
    assert (error.code, error.retryable, error.usage) == ("INTERNAL", False, Usage(3, 3, None, 6))
    assert engine.generations[0].aborts == 0


@pytest.mark.parametrize(
    ("error", "code", "retryable"),
    [
        (EngineFailure("SECRET"), "INTERNAL", False),
        (EngineDown("SECRET"), "INTERNAL", False),
        (KeyError("SECRET"), "INTERNAL", False),
        (InvalidRequest("SECRET"), "INVALID_ARGUMENT", False),
        (EngineFull("SECRET"), "OVERLOADED", True),
    ],
)
@pytest.mark.asyncio
async def test_failures_of_accepted_requests(error: Exception, code: str, retryable: bool) -> None:
    engine = ScriptedEngine(script=Script(ending=Ending.FAILURE), failure=error)
    event = error_of(await collect(engine, message()))
    assert (event.code, event.retryable) == (code, retryable)
    assert "SECRET" not in event.message
    assert engine.generations[0].aborts == 0


@pytest.mark.asyncio
async def test_the_gated_engine_dies() -> None:
    with GatedEngine(model="scripted") as engine:
        gate = engine.prepare("r", THREE)
        async with serving(engine) as served:
            call = served.call(message())
            await gate.submitted()
            gate.release()
            await call.read()
            engine.kill("SECRET")
            assert error_of([await call.read()]).code == "INTERNAL"
            assert await call.code() is grpc.StatusCode.OK
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served.generate(message())
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        assert engine.aborts == []


class BadResult(ScriptedEngine):
    """Its first result holds something that no response can carry."""

    def __init__(self, bad: SequenceState, played: Script = THREE) -> None:
        super().__init__(script=played)
        self.bad = bad

    def submit(self, *args: object) -> ScriptedGeneration:
        generation = super().submit(*args)  # type: ignore[arg-type]
        generation.sequences.append(self.bad)
        return generation


@pytest.mark.parametrize(
    "bad",
    [
        SequenceState(7),
        SequenceState(-1),
        SequenceState(1, tokens=[Token(-5, b"")]),
        SequenceState(1, tokens=[Token(2**32, b"")]),
        SequenceState(1, text="\ud800"),
        SequenceState(1, finish=Finish(FinishReason.STOP)),
    ],
    ids=["unknown index", "negative index", "negative id", "large id", "no UTF-8", "stop without a match"],
)
@pytest.mark.asyncio
async def test_an_unreadable_result_aborts_the_engine_once(bad: SequenceState) -> None:
    engine = BadResult(bad)
    received = await collect(engine, message(replace(PLAIN, num_sequences=2)))
    error = error_of(received)
    assert (error.code, len(received)) == ("INTERNAL", 1)
    assert engine.generations[0].aborts == 1


@pytest.mark.asyncio
async def test_an_unreadable_last_result_aborts_nothing() -> None:
    engine = BadResult(SequenceState(7), Script())
    assert error_of(await collect(engine, message())).code == "INTERNAL"
    assert engine.generations[0].aborts == 0
