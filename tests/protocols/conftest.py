"""The SMG reference servicer on each server library, with a gated engine behind it and a client before it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from smg_engine import SmgClient, serving

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.servers.base import ServerLibrary
from pytest_grpc_conformance.servers.grpcio import GrpcioAio
from pytest_grpc_conformance.servers.pygrpc_native import PygrpcNativeAio
from pytest_grpc_conformance.targets.loop_thread import LoopThread


@pytest.fixture(scope="module")
def loop() -> Iterator[LoopThread]:
    loop = LoopThread("smg-tests")
    yield loop
    loop.close()


@pytest.fixture(scope="module", params=[GrpcioAio, PygrpcNativeAio], ids=lambda library: library.name)
def library(request: pytest.FixtureRequest) -> ServerLibrary:
    library: ServerLibrary = request.param()
    if not library.availability().available:
        pytest.skip(library.availability().reason)
    return library


@pytest.fixture
def engine() -> Iterator[GatedEngine]:
    with GatedEngine() as engine:
        yield engine
        assert not engine.misuses


@pytest.fixture
def client(engine: GatedEngine, library: ServerLibrary, loop: LoopThread) -> Iterator[SmgClient]:
    with serving(engine, library, loop) as client:
        yield client
