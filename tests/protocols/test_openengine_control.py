"""The reference Control servicer: health, discovery and load; and the suite as its client."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import grpc
import pytest
from openengine_serving import (
    THREE,
    WAIT,
    Served,
    abort,
    events,
    libraries,
    message,
    serving,
    status_of,
    within,
)
from scripted_engine import ScriptedEngine

from pytest_grpc_conformance.engines.script import (
    Ending,
    Script,
    one_by_one,
    tokens,
)
from pytest_grpc_conformance.engines.script import script as make_script
from pytest_grpc_conformance.protocols.base import AbortAnswer, Request
from pytest_grpc_conformance.protocols.openengine import OPENENGINE
from pytest_grpc_conformance.protocols.openengine.bindings import (
    generation_pb2,
    kv_pb2,
    lifecycle_pb2,
    lora_pb2,
    model_pb2,
    server_pb2,
)


async def health(served: Served, **fields: Any) -> tuple[str, dict[str, str]]:
    response = await served.control.Health(lifecycle_pb2.HealthRequest(**fields), timeout=WAIT)
    name = lifecycle_pb2.HealthState.Name
    checks = {check.name: name(check.state) for check in response.checks}
    assert len(checks) == len(response.checks)
    return name(response.state).removeprefix("HEALTH_STATE_"), {
        key: value.removeprefix("HEALTH_STATE_") for key, value in checks.items()
    }


@libraries
@pytest.mark.asyncio
async def test_the_light_check(library: str) -> None:
    engine = ScriptedEngine()
    async with serving(engine, library) as served:
        fine = ("READY", {"grpc": "READY", "scheduler": "READY", "model": "READY"})
        assert await health(served) == fine
        assert await health(served, model="nope", role=server_pb2.ENGINE_ROLE_DECODE) == fine
        engine.healthy = False
        assert (await health(served))[0] == "NOT_READY"
        engine.healthy = True
        served.state.draining = True
        assert await health(served) == ("DRAINING", {"grpc": "READY", "scheduler": "DRAINING", "model": "READY"})
        engine.healthy = False
        assert (await health(served))[0] == "NOT_READY"
        assert engine.generations == []


class Unreadable(ScriptedEngine):
    @property
    def healthy(self) -> bool:
        raise RuntimeError("SECRET")

    @healthy.setter
    def healthy(self, value: bool) -> None: ...


@pytest.mark.asyncio
async def test_health_that_cannot_be_read() -> None:
    async with serving(Unreadable()) as served:
        assert (await health(served))[0] == "NOT_READY"


@pytest.mark.parametrize(
    ("played", "answer"),
    [
        (make_script(one_by_one(tokens(1))), "READY"),
        (Script(ending=Ending.NOTHING), "DEGRADED"),
        (Script(ending=Ending.FAILURE), "DEGRADED"),
    ],
)
@pytest.mark.asyncio
async def test_the_probe(played: Script, answer: str) -> None:
    engine = ScriptedEngine(script=played)
    async with serving(engine) as served:
        state, checks = await health(served, include_inference_probe=True)
        assert (state, checks["inference_probe"]) == (answer, answer)
        assert "role" not in checks
        (generation,) = engine.generations
        assert (generation.parameters.max_tokens, generation.aborts) == (1, 0)
        assert served.state.active == []
        assert await status_of(abort(served, request_id=generation.request_id)) is grpc.StatusCode.NOT_FOUND


@pytest.mark.asyncio
async def test_a_probe_without_an_answer_is_given_up() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine) as served:
        served.state.probe_timeout = 0.05
        assert (await health(served, include_inference_probe=True))[0] == "DEGRADED"
        assert [generation.aborts for generation in engine.generations] == [1]


@pytest.mark.asyncio
async def test_a_probe_that_the_engine_refuses() -> None:
    async with serving(ScriptedEngine(refusal=RuntimeError("SECRET"))) as served:
        response = await served.control.Health(lifecycle_pb2.HealthRequest(include_inference_probe=True), timeout=WAIT)
        assert response.state == lifecycle_pb2.HEALTH_STATE_DEGRADED
        assert "SECRET" not in str(response)


@pytest.mark.asyncio
async def test_a_probe_whose_caller_leaves() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine) as served:
        call = served.control.Health(lifecycle_pb2.HealthRequest(include_inference_probe=True))
        generation = await within(engine.submissions.get())
        call.cancel()
        await within(generation.abort_seen.wait())
        assert generation.aborts == 1


@pytest.mark.parametrize(
    ("fields", "name", "answer"),
    [
        ({"model": "scripted"}, "inference_probe", "READY"),
        ({"model": "nope"}, "inference_probe", "NOT_READY"),
        ({"role": server_pb2.ENGINE_ROLE_AGGREGATED}, "role", "READY"),
        ({"role": server_pb2.ENGINE_ROLE_PREFILL}, "role", "NOT_READY"),
        ({"role": 99}, "inference_probe", "READY"),
    ],
)
@pytest.mark.asyncio
async def test_what_a_probe_expects(fields: dict[str, Any], name: str, answer: str) -> None:
    async with serving(ScriptedEngine(script=THREE)) as served:
        state, checks = await health(served, include_inference_probe=True, **fields)
        assert (state, checks[name]) == (answer, answer)


@pytest.mark.asyncio
async def test_server_info() -> None:
    async with serving(ScriptedEngine()) as served, serving(ScriptedEngine()) as other:
        info = await served.control.GetServerInfo(server_pb2.GetServerInfoRequest())
        assert info == await served.control.GetServerInfo(server_pb2.GetServerInfoRequest())
        assert (info.schema_revision, info.minimum_client_revision) == (1, 1)
        assert info.schema_release not in {"", "main", "master", "HEAD", "latest"}
        assert info.engine_name
        assert info.engine_version
        assert info.engine_role == server_pb2.ENGINE_ROLE_AGGREGATED
        assert list(info.supported_models) == ["scripted"]
        assert info.kv_connector.enabled is False
        assert not info.HasField("capacity")
        load = await served.control.GetLoad(server_pb2.GetLoadRequest())
        assert info.instance_id == load.instance_id
        assert info.instance_id != (await other.control.GetServerInfo(server_pb2.GetServerInfoRequest())).instance_id


@pytest.mark.asyncio
async def test_model_info() -> None:
    async with serving(ScriptedEngine()) as served:
        info = await served.control.GetModelInfo(model_pb2.GetModelInfoRequest(model="scripted"))
        assert (info.model_id, info.served_model_name, info.max_context_length) == ("scripted", "scripted", 64)
        assert not info.HasField("max_output_tokens")
        assert info.generation.HasField("supports_priority")
        for model, code in (("", grpc.StatusCode.INVALID_ARGUMENT), ("nope", grpc.StatusCode.NOT_FOUND)):
            call = served.control.GetModelInfo(model_pb2.GetModelInfoRequest(model=model))
            assert await status_of(call) is code


@libraries
@pytest.mark.asyncio
async def test_load(library: str) -> None:
    engine = ScriptedEngine(script=THREE, held=True)

    async def running(served: Served) -> int:
        load = await served.control.GetLoad(server_pb2.GetLoadRequest())
        assert load.HasField("running_requests")
        assert load.queued_requests == 0
        assert not load.ranks
        assert not load.HasField("used_kv_blocks")
        assert abs(load.timestamp_unix_nanos - time.time_ns()) < 60 * 10**9
        return load.running_requests

    async with serving(engine, library) as served:
        assert await running(served) == 0
        finishes, aborts, cancels = (served.call(message(Request(request_id))) for request_id in ("f", "a", "c"))
        generations = {}
        for _ in range(3):
            generation = await within(engine.submissions.get())
            generations[generation.request_id] = generation
        assert await running(served) == 3
        per_rank = await served.control.GetLoad(server_pb2.GetLoadRequest(include_per_rank=True))
        (rank,) = per_rank.ranks
        assert (rank.HasField("data_parallel_rank"), rank.running_requests) == (True, 3)
        generations["f"].release(3)
        await events(finishes)
        assert await running(served) == 2
        await abort(served, request_id="a")
        await events(aborts)
        assert await running(served) == 1
        cancels.cancel()
        await within(generations["c"].abort_seen.wait())
        assert await running(served) == 0


@libraries
@pytest.mark.asyncio
async def test_what_is_not_offered(library: str) -> None:
    async with serving(ScriptedEngine(), library) as served:
        disabled = grpc.StatusCode.FAILED_PRECONDITION
        assert await status_of(served.control.LoadLora(lora_pb2.LoadLoraRequest())) is disabled
        assert await status_of(served.control.UnloadLora(lora_pb2.UnloadLoraRequest())) is disabled
        assert await status_of(served.control.ListLoras(lora_pb2.ListLorasRequest())) is disabled
        sources = await served.control.GetKvEventSources(kv_pb2.GetKvEventSourcesRequest(data_parallel_ranks=[0, 7]))
        assert not sources.sources
        subscription = served.control.SubscribeKvEvents(kv_pb2.SubscribeKvEventsRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await subscription.read()
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.asyncio
async def test_client_calls() -> None:
    engine = ScriptedEngine(script=THREE, held=True)

    def ask(address: str) -> tuple[Any, ...]:
        with grpc.insecure_channel(address) as channel:
            return (
                OPENENGINE.model_name(channel, WAIT),
                OPENENGINE.health(channel, WAIT),
                OPENENGINE.abort(channel, "r", WAIT),
                OPENENGINE.abort(channel, "nobody", WAIT),
            )

    def refused(address: str) -> None:
        with grpc.insecure_channel(address) as channel:
            OPENENGINE.abort(channel, "", WAIT)

    async with serving(engine) as served:
        call = served.call(message())
        await within(engine.submissions.get())
        model, state, aborted, unknown = await asyncio.to_thread(ask, served.address)
        assert (model, state.serving, state.words) == ("scripted", True, "READY")
        assert (aborted, unknown) == (AbortAnswer.ABORTED, AbortAnswer.NOT_FOUND)
        await events(call)
        engine.healthy = False
        again = await asyncio.to_thread(ask, served.address)
        assert (again[1].serving, again[1].words) == (False, "NOT_READY, model NOT_READY")
        assert again[2] is AbortAnswer.ALREADY_FINISHED
        with pytest.raises(grpc.RpcError):
            await asyncio.to_thread(refused, served.address)


def test_generate_names_the_method() -> None:
    method = OPENENGINE.generate
    assert method.path == "/openengine.v1.Inference/Generate"
    assert (method.request, method.response) == (generation_pb2.GenerateRequest, generation_pb2.GenerateResponse)
