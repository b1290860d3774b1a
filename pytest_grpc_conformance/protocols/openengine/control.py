"""The reference implementation of ``Control``, on the state that it shares with ``Inference``."""

from __future__ import annotations

import asyncio
import importlib.metadata
import logging
import time
import uuid
from collections.abc import AsyncIterator

import grpc

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt
from pytest_grpc_conformance.protocols.openengine.bindings import (
    kv_pb2,
    lifecycle_pb2,
    lora_pb2,
    model_pb2,
    openengine_pb2_grpc,
    server_pb2,
)
from pytest_grpc_conformance.protocols.openengine.request_mapping import (
    DATA_PARALLEL_SIZE,
    MAX_NUM_SEQUENCES,
    MAX_TOP_N,
)
from pytest_grpc_conformance.protocols.openengine.state import ActiveRequest, Context, ServerState

logger = logging.getLogger(__name__)

ROLE = server_pb2.ENGINE_ROLE_AGGREGATED
_OTHER_ROLES = (server_pb2.ENGINE_ROLE_PREFILL, server_pb2.ENGINE_ROLE_DECODE)
_WORST_FIRST = (
    lifecycle_pb2.HEALTH_STATE_NOT_READY,
    lifecycle_pb2.HEALTH_STATE_DRAINING,
    lifecycle_pb2.HEALTH_STATE_DEGRADED,
    lifecycle_pb2.HEALTH_STATE_READY,
)


def _version() -> str:
    try:
        return importlib.metadata.version("pytest-grpc-conformance")
    except importlib.metadata.PackageNotFoundError:
        return "0.0.0"


class ControlServicer(openengine_pb2_grpc.ControlServicer):
    """``Control`` on an engine, for servers with ``grpc.aio``'s interface."""

    def __init__(self, state: ServerState) -> None:
        self.state = state

    async def GetServerInfo(self, request: server_pb2.GetServerInfoRequest, context: Context) -> server_pb2.ServerInfo:
        """What the fake engine has no notion of (KV blocks, schedulers) is absent."""
        version = _version()
        return server_pb2.ServerInfo(
            engine_name="pytest-grpc-conformance",
            engine_version=version,
            engine_role=ROLE,
            instance_id=self.state.instance_id,
            supported_models=[self.state.engine.model],
            parallelism=server_pb2.ParallelismInfo(data_parallel_size=DATA_PARALLEL_SIZE, data_parallel_start_rank=0),
            kv_connector=kv_pb2.KvConnectorInfo(enabled=False, supports_abort_cleanup=False),
            schema_revision=1,
            minimum_client_revision=1,
            # The schema as this release of the package ships it.
            schema_release=f"pytest-grpc-conformance-{version}",
        )

    async def GetModelInfo(self, request: model_pb2.GetModelInfoRequest, context: Context) -> model_pb2.ModelInfo:
        engine = self.state.engine
        if not request.model:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "model is required")
        if request.model != engine.model:
            await context.abort(grpc.StatusCode.NOT_FOUND, "no such model is served here")
        logprobs = model_pb2.LogprobCapabilities(
            supported=True,
            candidate_selection_modes=[model_pb2.CANDIDATE_TOKEN_SELECTION_MODE_TOP_N],
            max_top_n=MAX_TOP_N,
        )
        return model_pb2.ModelInfo(
            model_id=engine.model,
            served_model_name=engine.model,
            max_context_length=engine.max_context_tokens,
            supports_text_input=True,
            supports_token_ids_input=True,
            generation=model_pb2.GenerationCapabilities(
                prompt_logprobs=logprobs,
                output_logprobs=logprobs,
                guided_decoding=model_pb2.GuidedDecodingCapabilities(supported=False),
                max_num_sequences=MAX_NUM_SEQUENCES,
                supports_priority=False,
                supports_stop_in_output=True,
                supports_cache_salt=False,
                supports_prefix_cache_bypass=False,
            ),
            supports_lora=False,
            supports_multimodal=False,
        )

    async def GetLoad(self, request: server_pb2.GetLoadRequest, context: Context) -> server_pb2.LoadInfo:
        """Running: requests that the engine has; queued: requests that are still being tokenized."""
        active = self.state.active
        running = sum(request.generation is not None for request in active)
        queued = len(active) - running
        ranks = [server_pb2.RankLoadInfo(data_parallel_rank=0, running_requests=running, queued_requests=queued)]
        return server_pb2.LoadInfo(
            instance_id=self.state.instance_id,
            timestamp_unix_nanos=time.time_ns(),
            running_requests=running,
            queued_requests=queued,
            ranks=ranks if request.include_per_rank else [],
        )

    async def Health(self, request: lifecycle_pb2.HealthRequest, context: Context) -> lifecycle_pb2.HealthResponse:
        """The overall state is that of the worst check. ``model`` and ``role`` matter with the probe only."""
        draining = self.state.draining
        checks = [
            _check("grpc", lifecycle_pb2.HEALTH_STATE_READY),
            _check(
                "scheduler",
                lifecycle_pb2.HEALTH_STATE_DRAINING if draining else lifecycle_pb2.HEALTH_STATE_READY,
            ),
            self._check_model(),
        ]
        if request.include_inference_probe:
            # A number that is no role of ours counts as unspecified.
            if request.role in _OTHER_ROLES:
                words = "the server's role is AGGREGATED"
                checks.append(_check("role", lifecycle_pb2.HEALTH_STATE_NOT_READY, words))
            elif request.role == ROLE:
                checks.append(_check("role", lifecycle_pb2.HEALTH_STATE_READY))
            checks.append(await self._probe(request.model))
        states = [check.state for check in checks]
        return lifecycle_pb2.HealthResponse(
            state=next(state for state in _WORST_FIRST if state in states), checks=checks
        )

    def _check_model(self) -> lifecycle_pb2.HealthCheck:
        try:
            healthy = self.state.engine.healthy
        except Exception:
            logger.warning("the engine's health could not be read", exc_info=True)
            healthy = False
        if healthy:
            return _check("model", lifecycle_pb2.HEALTH_STATE_READY)
        return _check("model", lifecycle_pb2.HEALTH_STATE_NOT_READY, "the engine is not healthy")

    async def _probe(self, model: str) -> lifecycle_pb2.HealthCheck:
        """One token under an internal id; after ``probe_timeout`` it is given up and aborted."""
        name, degraded = "inference_probe", lifecycle_pb2.HEALTH_STATE_DEGRADED
        if model and model != self.state.engine.model:
            return _check(name, lifecycle_pb2.HEALTH_STATE_NOT_READY, "the model is not served here")
        probe = ActiveRequest(f"openengine-health-probe-{uuid.uuid4()}")
        try:
            probe.generation = self.state.engine.submit(
                probe.request_id, Prompt((1,)), GenerationParameters(max_tokens=1, temperature=0.0)
            )
            finished = await asyncio.wait_for(_played_out(probe), self.state.probe_timeout)
        except asyncio.TimeoutError:
            return _check(name, degraded, "the engine did not answer in time")
        except Exception:
            logger.warning("the inference probe failed", exc_info=True)
            return _check(name, degraded, "the engine failed the probe")
        finally:
            probe.leave()
        if not finished:
            return _check(name, degraded, "the engine ended the probe early")
        return _check(name, lifecycle_pb2.HEALTH_STATE_READY)

    async def Abort(self, request: lifecycle_pb2.AbortRequest, context: Context) -> lifecycle_pb2.AbortResponse:
        """Answers as soon as the engine was told; the stream ends by itself."""
        match request.WhichOneof("target"):
            case "request_id":
                if not request.request_id:
                    await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "request_id is empty")
                active = self.state.find(request.request_id)
                if active is not None:
                    return await self._abort([active], context)
                if not self.state.is_over(request.request_id):
                    await context.abort(grpc.StatusCode.NOT_FOUND, "no request of this id is known")
                return lifecycle_pb2.AbortResponse(status=lifecycle_pb2.ABORT_STATUS_ALREADY_FINISHED)
            case "all_requests":
                return await self._abort(self.state.active, context)
            case "kv_session":
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there are no KV sessions on this server")
            case _:
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "no target is set")

    async def _abort(self, requests: list[ActiveRequest], context: Context) -> lifecycle_pb2.AbortResponse:
        refused = 0
        for request in requests:
            try:
                request.abort()
            except Exception:
                logger.warning("the engine refused an abort", exc_info=True)
                refused += 1
        if refused:
            details = f"the engine refused {refused} of {len(requests)} aborts"
            await context.abort(grpc.StatusCode.INTERNAL, details)
        status = lifecycle_pb2.ABORT_STATUS_ABORTED if requests else lifecycle_pb2.ABORT_STATUS_ALREADY_FINISHED
        return lifecycle_pb2.AbortResponse(status=status)

    async def LoadLora(self, request: lora_pb2.LoadLoraRequest, context: Context) -> lora_pb2.LoadLoraResponse:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "LoRA is disabled")

    async def UnloadLora(self, request: lora_pb2.UnloadLoraRequest, context: Context) -> lora_pb2.UnloadLoraResponse:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "LoRA is disabled")

    async def ListLoras(self, request: lora_pb2.ListLorasRequest, context: Context) -> lora_pb2.ListLorasResponse:
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "LoRA is disabled")

    async def GetKvEventSources(
        self, request: kv_pb2.GetKvEventSourcesRequest, context: Context
    ) -> kv_pb2.GetKvEventSourcesResponse:
        """No publisher, no sources."""
        return kv_pb2.GetKvEventSourcesResponse()

    async def SubscribeKvEvents(
        self, request: kv_pb2.SubscribeKvEventsRequest, context: Context
    ) -> AsyncIterator[kv_pb2.SubscribeKvEventsResponse]:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server publishes no KV events")
        yield kv_pb2.SubscribeKvEventsResponse()


def _check(name: str, state: lifecycle_pb2.HealthState, message: str = "") -> lifecycle_pb2.HealthCheck:
    return lifecycle_pb2.HealthCheck(name=name, state=state, message=message)


async def _played_out(probe: ActiveRequest) -> bool:
    """Take the probe's results to the end; whether it finished."""
    generation = probe.generation
    assert generation is not None
    try:
        async for _ in generation:
            if generation.finished:
                break
    except Exception:
        probe.engine_ended()
        raise
    probe.engine_ended()
    return generation.finished
