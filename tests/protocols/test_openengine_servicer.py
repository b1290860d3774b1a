"""The messages of the reference Inference servicer behind real servers on loopback, and the ids."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace

import grpc
import pytest
from openengine_serving import (
    PLAIN,
    THREE,
    CallContext,
    libraries,
    message,
    serving,
    within,
)
from scripted_engine import ScriptedEngine

from pytest_grpc_conformance.engines.base import (
    EngineFull,
    SequenceState,
)
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.script import (
    Advance,
    Candidate,
    Ending,
    Prompt,
    Script,
    Step,
    StopText,
    StopToken,
    Token,
    one_by_one,
    pieces,
    scored,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.protocols.base import FinishEvent, Request, TokensEvent
from pytest_grpc_conformance.protocols.openengine import OPENENGINE
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2 as pb
from pytest_grpc_conformance.protocols.openengine.formatting import Formatter
from pytest_grpc_conformance.protocols.openengine.holdback import Progress
from pytest_grpc_conformance.protocols.openengine.servicer import InferenceServicer
from pytest_grpc_conformance.protocols.openengine.state import ServerState

SCRIPTED = {
    "tokens": (THREE, PLAIN),
    "held and let go": (script(one_by_one(pieces("x", "A", "A", "C"))), replace(PLAIN, stops=(StopText("AB"),))),
    "excluded stop": (script(one_by_one(pieces("xA", "A", "By"))), replace(PLAIN, stops=(StopText("AB"),))),
    "included stop": (
        script(one_by_one(pieces("xA", "By"))),
        replace(PLAIN, stops=(StopText("AB"),), include_stop=True),
    ),
    "stop token": (THREE, replace(PLAIN, stops=(StopToken(101),))),
    "eos": (script(one_by_one((Token(5, b"a"), Token(2)))), PLAIN),
    "split character": (script(one_by_one(pieces(b"\xf0\x9f", b"\x98\x80", b"\xf0"))), PLAIN),
    "scores": (
        script(one_by_one(scored(tokens(3))), prompt=scored(tokens(3))),
        replace(PLAIN, logprobs=2, prompt_logprobs=1),
    ),
    "sequences": (
        script(side_by_side(tokens(1), tokens(3, start=200), tokens(2, start=300))),
        replace(PLAIN, num_sequences=3),
    ),
    "empty steps": (script(Step(), one_by_one(tokens(1)), Step((Advance(0),)), Step()), PLAIN),
    "nothing": (Script(cached_tokens=None), PLAIN),
    "max_tokens": (THREE, replace(PLAIN, max_tokens=2)),
    "text prompt": (THREE, replace(PLAIN, prompt="a é")),
}


@libraries
@pytest.mark.parametrize("name", list(SCRIPTED))
@pytest.mark.asyncio
async def test_messages(library: str, name: str) -> None:
    played, request = SCRIPTED[name]
    engine = ScriptedEngine(script=played)
    async with serving(engine, library) as served:
        received = await served.generate(message(request))
    prompt = Prompt(request.prompt) if isinstance(request.prompt, tuple) else Prompt(tuple("a é".encode()), "a é")
    cut = course(played, request.parameters(), engine.eos_token_ids)
    assert received == OPENENGINE.expected_messages(request, prompt, played, cut)
    assert engine.prompts == [prompt]
    assert [generation.parameters for generation in engine.generations] == [request.parameters()]
    assert [generation.aborts for generation in engine.generations] == [0]


@pytest.mark.asyncio
async def test_each_result_arrives_before_the_next() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine) as served:
        call = served.call(message())
        generation = await within(engine.submissions.get())
        for taken in (1, 2, 3):
            generation.release()
            event = OPENENGINE.to_event(await call.read())
            assert isinstance(event, TokensEvent)
            assert generation.taken == taken
        assert isinstance(OPENENGINE.to_event(await call.read()), FinishEvent)
        assert await call.code() is grpc.StatusCode.OK


@libraries
@pytest.mark.asyncio
async def test_a_duplicate_is_refused_and_the_first_goes_on(library: str) -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine, library) as served:
        first = served.call(message())
        generation = await within(engine.submissions.get())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(message())
        assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        assert len(engine.generations) == 1
        generation.release(3)
        received = [response async for response in first]
        assert len(received) == 4
        assert generation.aborts == 0


@libraries
@pytest.mark.asyncio
async def test_an_id_is_free_after_every_ending(library: str) -> None:
    engine = ScriptedEngine()
    async with serving(engine, library) as served:
        for played in (THREE, THREE.but(ending=Ending.FAILURE), THREE.but(ending=Ending.NOTHING), THREE):
            engine.script = played
            received = await served.generate(message())
            assert received[-1].HasField("usage")
            assert served.state.active == []
        engine.refusal = EngineFull("SECRET /opt/x.py")
        with pytest.raises(grpc.aio.AioRpcError):
            await served.generate(message())
        engine.refusal = None
        await served.generate(message())
        assert served.state.active == []


@pytest.mark.parametrize("ending", list(Ending))
@pytest.mark.asyncio
async def test_the_id_is_free_before_the_last_message_is_taken(ending: Ending) -> None:
    state = ServerState(ScriptedEngine(script=THREE.but(ending=ending)))
    async for response in InferenceServicer(state).Generate(message(), CallContext()):
        assert (state.active == []) == response.HasField("usage") or response.WhichOneof("event") == "token"


@pytest.mark.asyncio
async def test_steps_after_the_finish_of_a_sequence_are_dropped() -> None:
    engine = ScriptedEngine(script=script(side_by_side(tokens(1), tokens(3, start=200))), held=True)
    servicer = InferenceServicer(ServerState(engine))
    stream = servicer.Generate(message(replace(PLAIN, num_sequences=2)), CallContext())
    first = asyncio.ensure_future(anext(stream))
    generation = await within(engine.submissions.get())
    generation.release()
    received = [await first, await anext(stream), await anext(stream)]
    # The engine repeats itself on a sequence that is over.
    generation.sequences[0].tokens += tokens(2)
    generation.sequences[0].text += " w0 w1"
    generation.release(2)
    received += [response async for response in stream]
    kinds = [response.WhichOneof("event") for response in received]
    assert kinds == ["token", "finished", "token", "token", "token", "finished"]
    assert received[-1].finished.output_index == 1


def test_more_scores_than_asked_for_are_cut_and_bounded() -> None:
    """The engine is trusted with neither."""
    candidates = tuple(Candidate(rank, 1.0 - rank, rank) for rank in (3, 2, 0, 1))
    token = Token(5, b"a", -math.inf, 0, candidates)
    asked = Formatter("r", logprobs=3, prompt_logprobs=None).tokens(0, [token], "a").token.tokens[0]
    assert asked.logprob == -9999.0
    assert not asked.HasField("rank")
    assert [(entry.token_id, entry.logprob) for entry in asked.candidates] == [(0, 0.0), (1, 0.0), (2, -1.0)]
    assert [entry.HasField("rank") for entry in asked.candidates] == [False, True, True]
    plain = Formatter("r", logprobs=None, prompt_logprobs=3).tokens(0, [token], "a").token.tokens[0]
    assert plain == pb.TokenInfo(token_id=5)


@pytest.mark.parametrize("stops", [(), ("AB",)])
def test_what_is_shown_is_not_shown_again(stops: tuple[str, ...]) -> None:
    """Whatever the engine takes back."""
    progress = Progress(stops)
    token = Token(5)
    assert progress.take(SequenceState(0, [token, token], "xy", [1, 2])) == ([token, token], "xy")
    assert progress.take(SequenceState(0, [token], "x", [1])) == ([], "")
    assert progress.take(SequenceState(0, [token] * 3, "xyz", [1, 2, 3])) == ([token], "z")


@libraries
@pytest.mark.asyncio
async def test_32_streams_at_once_do_not_mix(library: str) -> None:
    engine = ScriptedEngine()
    for number in range(32):
        engine.scripts[f"r{number}"] = script(one_by_one(tokens(5, start=100 * number + 10)))
    async with serving(engine, library) as served:
        calls = [served.generate(message(Request(f"r{number}"))) for number in range(32)]
        for number, received in enumerate(await asyncio.gather(*calls)):
            assert {response.request_id for response in received} == {f"r{number}"}
            ids = [token.token_id for response in received for token in response.token.tokens]
            assert ids == list(range(100 * number + 10, 100 * number + 15))


@libraries
@pytest.mark.parametrize("name", list(SCRIPTED))
@pytest.mark.asyncio
async def test_messages_with_the_gated_engine(library: str, name: str) -> None:
    played, request = SCRIPTED[name]
    with GatedEngine(model="scripted") as engine:
        engine.prepare("r", played, open=True)
        async with serving(engine, library) as served:
            received = await served.generate(message(request))
        submission = engine.submissions[0]
        cut = course(played, request.parameters(), engine.eos_token_ids)
        assert received == OPENENGINE.expected_messages(request, submission.prompt, played, cut)
        assert submission.parameters == request.parameters()
        assert engine.aborts == []
        assert engine.misuses == []
