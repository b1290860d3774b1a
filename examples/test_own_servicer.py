"""A servicer of your own on the gated fake engine, on every server library: the README's example."""

import pytest

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt, one_by_one, script, tokens
from pytest_grpc_conformance.protocols.openengine.bindings import generation_pb2, openengine_pb2_grpc


class MyServicer(openengine_pb2_grpc.InferenceServicer):
    """Stands for your servicer: it submits to an engine and turns each result into a message."""

    def __init__(self, engine):
        self.engine = engine

    async def Generate(self, request, context):
        prompt = Prompt(tuple(request.token_ids.ids))
        generation = self.engine.submit(request.request_id, prompt, GenerationParameters())
        sent = 0
        try:
            async for state in generation:
                new = state.sequences[0].tokens[sent:]
                sent += len(new)
                infos = [generation_pb2.TokenInfo(token_id=token.id) for token in new]
                token = generation_pb2.TokenOutput(output_index=0, tokens=infos)
                yield generation_pb2.GenerateResponse(request_id=request.request_id, token=token)
        finally:
            if not generation.finished:
                generation.abort()


@pytest.fixture
def grpc_servicers(grpc_engine):
    return [(openengine_pb2_grpc.add_InferenceServicer_to_server, MyServicer(grpc_engine))]


@pytest.fixture
def grpc_stub_cls():
    return openengine_pb2_grpc.InferenceStub


def test_first_token_before_the_second_exists(grpc_engine, grpc_stub):
    gate = grpc_engine.prepare("r1", script(one_by_one(tokens(2))))
    call = grpc_stub.Generate(generation_pb2.GenerateRequest(request_id="r1"), timeout=10)
    gate.release(1)
    assert [info.token_id for info in next(call).token.tokens] == [100]
    gate.release(1)
    assert [info.token_id for info in next(call).token.tokens] == [101]


def test_a_cancelled_call_reaches_the_engine_in_silence(grpc_engine, grpc_stub):
    gate = grpc_engine.prepare("r1", script(one_by_one(tokens(2))))
    call = grpc_stub.Generate(generation_pb2.GenerateRequest(request_id="r1"), timeout=10)
    gate.submitted().wait()
    call.cancel()
    gate.aborted().wait()
