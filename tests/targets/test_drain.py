"""A case can let the reference servicers drain, where the protocol's have such a state."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import registry
from pytest_grpc_conformance.protocols.base import Health, Request
from pytest_grpc_conformance.servers.grpcio import GrpcioAio
from pytest_grpc_conformance.targets.base import NotApplicable
from pytest_grpc_conformance.targets.inprocess import InprocessTarget
from pytest_grpc_conformance.targets.loop_thread import LoopThread


def _target(protocol: str, loop: LoopThread) -> InprocessTarget:
    return InprocessTarget(GrpcioAio(), registry.protocol(protocol), loop, timeout=10.0).start()


def test_draining_refuses_new_work_and_shows_in_health(loop: LoopThread) -> None:
    target = _target("openengine", loop)
    try:
        target.drain()
        stream = target.generate(Request("new"))
        assert stream.rest() == []
        assert stream.status is not None
        assert stream.status.code == "UNAVAILABLE"
        assert target.client.health() == Health(False, "DRAINING, scheduler DRAINING")
    finally:
        target.close()


def test_protocol_without_drain_is_not_applicable(loop: LoopThread) -> None:
    target = _target("smg", loop)
    try:
        with pytest.raises(NotApplicable, match="the servicers of this protocol cannot be told to drain"):
            target.drain()
    finally:
        target.close()
