"""What the reference servicer tells about itself: health, model, server, and the methods that it lacks."""

from __future__ import annotations

import grpc
import pytest
from smg_engine import SECRET, HandMadeEngine, SmgClient, drain, serving
from smg_grpc_proto.generated import common_pb2
from smg_grpc_proto.generated import trtllm_service_pb2 as pb

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.smg import SMG
from pytest_grpc_conformance.servers.base import ServerLibrary
from pytest_grpc_conformance.targets.loop_thread import LoopThread


def test_health_is_ok_or_a_description(engine: GatedEngine, client: SmgClient) -> None:
    assert SMG.health(client.channel, 20).serving
    assert SMG.health(client.channel, 20).words == "OK"
    engine.healthy = False
    health = SMG.health(client.channel, 20)
    assert not health.serving
    assert health.words not in ("", "OK")


def test_health_check_that_raises_is_told_in_an_ok_response(library: ServerLibrary, loop: LoopThread) -> None:
    class Sick(HandMadeEngine):
        @property
        def healthy(self) -> bool:
            raise RuntimeError(SECRET)

        @healthy.setter
        def healthy(self, value: bool) -> None: ...

    with serving(Sick(KeyError()), library, loop) as client:
        health = SMG.health(client.channel, 20)
    assert not health.serving
    assert "SECRET" not in health.words


def test_model_info_tells_what_is_true_of_the_engine(engine: GatedEngine, client: SmgClient) -> None:
    info = client.stub.GetModelInfo(pb.GetModelInfoRequest())
    assert SMG.model_name(client.channel, 20) == info.model_id == engine.model
    assert info.max_seq_len == engine.max_context_tokens
    assert 0 < info.max_input_len < info.max_seq_len
    assert info.vocab_size == min(engine.vocabulary_size, 2**31 - 1)
    assert min(info.max_batch_size, info.hidden_size, info.num_layers, info.num_heads) > 0
    assert list(info.supported_features) == []
    assert info == client.stub.GetModelInfo(pb.GetModelInfoRequest())


def test_server_info_is_complete(client: SmgClient) -> None:
    info = client.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert info.version
    assert info.backend == "pytorch"
    sizes = (info.tensor_parallel_size, info.pipeline_parallel_size, info.context_parallel_size)
    assert (sizes, info.world_size) == ((1, 1, 1), 1)


def test_missing_methods_are_unimplemented(client: SmgClient) -> None:
    streams = [
        client.stub.GetTokenizer(common_pb2.GetTokenizerRequest(), timeout=20),
        client.stub.SubscribeKvEvents(common_pb2.SubscribeKvEventsRequest(), timeout=20),
    ]
    for stream in streams:
        ended = drain(stream)
        assert (ended.messages, ended.code) == ([], "UNIMPLEMENTED")
        assert "this server" in ended.details
    with pytest.raises(grpc.RpcError) as caught:
        client.stub.Embed(pb.EmbedRequest(), timeout=20)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
