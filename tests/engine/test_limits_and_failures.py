"""A case sets the fake engine's running limit before its first request, and says what kind of failure it means."""

from __future__ import annotations

import pytest
from servicing import serve, submit, words

from pytest_grpc_conformance.engines.base import EngineFailure, EngineFull, InvalidRequest
from pytest_grpc_conformance.engines.gated import EngineMisuse
from pytest_grpc_conformance.engines.script import Ending


def test_limit_can_be_set_before_the_first_request(engine, thread_loop):
    assert engine.max_running is None
    engine.max_running = 1
    gates = [engine.prepare(name, words("a")) for name in ("r1", "r2")]
    for name in ("r1", "r2"):
        thread_loop.run(submit(engine, name))
    assert (engine.in_flight(), engine.queued()) == (("r1",), ("r2",))
    gates[0].release_all()
    gates[0].settled().wait()
    assert (engine.in_flight(), engine.queued()) == (("r2",), ())


def test_limit_stays_while_there_are_requests(engine, thread_loop):
    gate = engine.prepare("r1", words("a"), open=False)
    thread_loop.run(submit(engine))
    with pytest.raises(EngineMisuse, match="max_running is set before the first request"):
        engine.max_running = 1
    gate.release_all()
    engine.idle().wait()
    engine.max_running = 1
    assert engine.max_running == 1


@pytest.mark.parametrize(
    ("kind", "error"), [("failure", EngineFailure), ("full", EngineFull), ("invalid", InvalidRequest)]
)
def test_failure_after_acceptance_has_its_kind(engine, thread_loop, kind, error):
    failing = words("a").but(ending=Ending.FAILURE, failure="it broke", failure_kind=kind)
    engine.prepare("r1", failing, open=True)
    received = thread_loop.run(serve(engine))
    assert (received.texts, type(received.error), str(received.error)) == (["a"], error, "it broke")


def test_unknown_kind_of_failure_is_a_fault_of_the_test(engine):
    with pytest.raises(EngineMisuse, match="unknown kind of failure 'odd'; known: failure, invalid, full"):
        engine.prepare("r1", words("a").but(failure_kind="odd"))
