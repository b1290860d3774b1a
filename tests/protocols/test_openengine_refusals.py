"""What the reference servicer refuses before the engine has it, and what it does not refuse."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import grpc
import pytest
from openengine_serving import (
    PLAIN,
    THREE,
    WAIT,
    error_of,
    libraries,
    message,
    serving,
    within,
)
from scripted_engine import ScriptedEngine

from pytest_grpc_conformance.engines.base import (
    EngineDown,
    EngineError,
    EngineFull,
    InvalidRequest,
)
from pytest_grpc_conformance.protocols.base import Request, Usage
from pytest_grpc_conformance.protocols.openengine.bindings import lifecycle_pb2, server_pb2


@libraries
@pytest.mark.parametrize(
    ("error", "code"),
    [
        (InvalidRequest("SECRET /opt/x.py"), grpc.StatusCode.INVALID_ARGUMENT),
        (EngineFull("SECRET /opt/x.py"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (EngineDown("SECRET /opt/x.py"), grpc.StatusCode.UNAVAILABLE),
        (EngineError("SECRET /opt/x.py"), grpc.StatusCode.INTERNAL),
        (TypeError("SECRET /opt/x.py"), grpc.StatusCode.INTERNAL),
    ],
)
@pytest.mark.asyncio
async def test_refused_submissions(library: str, error: Exception, code: grpc.StatusCode) -> None:
    engine = ScriptedEngine(refusal=error)
    async with serving(engine, library) as served:
        for _ in range(2):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served.generate(message())
            assert caught.value.code() is code
            assert "SECRET" not in (caught.value.details() or "")
            assert served.state.active == []
            assert not served.state.is_over("r")


@libraries
@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (replace(PLAIN, request_id=""), grpc.StatusCode.INVALID_ARGUMENT),
        (replace(PLAIN, prompt=()), grpc.StatusCode.INVALID_ARGUMENT),
        (replace(PLAIN, prompt=""), grpc.StatusCode.INVALID_ARGUMENT),
        (replace(PLAIN, prompt="x" * 65), grpc.StatusCode.INVALID_ARGUMENT),
        (replace(PLAIN, prompt="untokenizable"), grpc.StatusCode.INVALID_ARGUMENT),
        (replace(PLAIN, prompt=(1,) * 65), grpc.StatusCode.INVALID_ARGUMENT),
        (replace(PLAIN, model="nope"), grpc.StatusCode.NOT_FOUND),
        (replace(PLAIN, num_sequences=0), grpc.StatusCode.INVALID_ARGUMENT),
        (replace(PLAIN, temperature=-1.0), grpc.StatusCode.INVALID_ARGUMENT),
        (replace(PLAIN, metadata=(("openengine-priority", "high"),)), grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
@pytest.mark.asyncio
async def test_refused_requests(library: str, request_: Request, code: grpc.StatusCode) -> None:
    engine = ScriptedEngine(script=THREE)
    async with serving(engine, library) as served:
        call = served.call(message(request_), metadata=request_.metadata)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()
        assert caught.value.code() is code
        assert engine.generations == []
        assert served.state.active == []


@pytest.mark.asyncio
async def test_metadata_that_changes_nothing() -> None:
    engine = ScriptedEngine(script=THREE)
    metadata = (
        ("openengine-target-dp-rank", "0"),
        ("openengine-priority", "-5"),
        ("openengine-routing-key", "k"),
        ("traceparent", "garbage"),
        ("tracestate", "a=b"),
        ("x-tenant", "a"),
        ("x-tenant", "a"),
        ("blob-bin", b"\x00\xff"),
    )
    async with serving(engine) as served:
        assert len(await served.generate(message(), metadata=metadata)) == 4


@pytest.mark.asyncio
async def test_draining_refuses_new_work_and_keeps_streams() -> None:
    engine = ScriptedEngine(script=THREE, held=True)
    async with serving(engine) as served:
        call = served.call(message())
        generation = await within(engine.submissions.get())
        served.state.draining = True
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await served.generate(message(replace(PLAIN, request_id="other")))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        generation.release(3)
        assert len([response async for response in call]) == 4
        assert len(engine.generations) == 1


class BlockedTokenizer(ScriptedEngine):
    """Its tokenizer waits for the test, in whatever thread it runs."""

    def __init__(self) -> None:
        super().__init__(script=THREE)
        self.go = threading.Event()
        self.entered = threading.Event()

    def tokenize(self, text: str) -> tuple[int, ...]:
        self.entered.set()
        if not self.go.wait(WAIT):
            raise TimeoutError("the test did not let the tokenizer go")
        return super().tokenize(text)


@pytest.mark.asyncio
async def test_a_slow_tokenizer_holds_up_nobody_else() -> None:
    engine = BlockedTokenizer()
    async with serving(engine) as served:
        slow = asyncio.ensure_future(served.generate(message(replace(PLAIN, prompt="abc"))))
        try:
            await asyncio.to_thread(engine.entered.wait, WAIT)
            assert len(await served.generate(message(replace(PLAIN, request_id="other")))) == 4
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await served.generate(message())
            assert caught.value.code() is grpc.StatusCode.ALREADY_EXISTS
        finally:
            engine.go.set()
        assert len(await slow) == 4


@pytest.mark.asyncio
async def test_an_abort_while_the_prompt_is_tokenized() -> None:
    engine = BlockedTokenizer()
    async with serving(engine) as served:
        call = asyncio.ensure_future(served.generate(message(replace(PLAIN, prompt="abc"))))
        try:
            await asyncio.to_thread(engine.entered.wait, WAIT)
            load = await served.control.GetLoad(server_pb2.GetLoadRequest())
            assert (load.running_requests, load.queued_requests) == (0, 1)
            answer = await served.control.Abort(lifecycle_pb2.AbortRequest(request_id="r"))
            assert answer.status == lifecycle_pb2.ABORT_STATUS_ABORTED
        finally:
            engine.go.set()
        error = error_of(await call)
        assert (error.code, error.retryable, error.usage) == ("CANCELLED", False, Usage(3, 0, None, 3))
        assert engine.generations == []
        again = await served.control.Abort(lifecycle_pb2.AbortRequest(request_id="r"))
        assert again.status == lifecycle_pb2.ABORT_STATUS_ALREADY_FINISHED
