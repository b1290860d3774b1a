"""Health: the light check follows the engine's state, costs the engine nothing, and never has to wait for it."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.script import Ending, one_by_one, script, tokens
from pytest_grpc_conformance.marker import REFERENCE, SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Health, Request
from pytest_grpc_conformance.targets.base import Target

if TYPE_CHECKING:
    from pytest_grpc_conformance.targets.inprocess import InprocessTarget

THREE = script(one_by_one(tokens(3)))
STREAMS = 8


def _serving(target: Target, expected: bool) -> None:
    """A health check is answered with OK, and says whether the server can serve."""
    health = asserts.done("a health check", target.client.health)
    says = isinstance(health, Health) and health.serving
    asserts.true(f"the server says {'' if expected else 'not '}that it can serve", says is expected, health)


@requirement("OE-HLT-007", "SMG-HLT-001", needs=(SCRIPTED,))
def test_healthy_server_says_so(grpc_target: Target) -> None:
    """The server MUST say that it can serve while its engine is healthy."""
    _serving(grpc_target, True)


@requirement("OE-HLT-008", "SMG-HLT-002", "SMG-HLT-003", needs=(SCRIPTED,))
def test_unhealthy_engine_shows_in_the_answer(grpc_target: Target) -> None:
    """The server MUST tell that its engine is unhealthy in an OK response, not by failing the call."""
    grpc_target.engine.healthy = False
    _serving(grpc_target, False)


@requirement("OE-HLT-008", "SMG-HLT-002", needs=(SCRIPTED,))
def test_dead_engine_shows_in_the_answer(grpc_target: Target) -> None:
    """The server MUST NOT say that it can serve once its engine has died, with streams open or not."""
    gate = grpc_target.prepare("open", THREE)
    stream = grpc_target.generate(Request("open"))
    asserts.reached(gate.submitted(), "the engine has the request")
    grpc_target.engine.kill()
    asserts.ended(stream, gate)
    _serving(grpc_target, False)


@requirement("OE-HLT-007", "SMG-HLT-001", needs=(SCRIPTED,))
def test_health_follows_the_engine_both_ways(grpc_target: Target) -> None:
    """The server MUST say what holds now, when the engine recovers as well as when it fails."""
    for healthy in (True, False, True, False, True):
        grpc_target.engine.healthy = healthy
        _serving(grpc_target, healthy)


@requirement("OE-HLT-012", "SMG-HLT-004", needs=(SCRIPTED,))
@pytest.mark.parametrize("told", [0, 1], ids=lambda told: f"told={told}")
def test_health_is_answered_while_the_engine_is_silent(grpc_target: Target, told: int) -> None:
    """The server SHOULD answer a health check quickly while several requests wait for a silent engine."""
    for number in range(STREAMS):
        gate = grpc_target.prepare(f"held {number}", THREE)
        stream = grpc_target.generate(Request(f"held {number}"))
        asserts.reached(gate.submitted(), "the engine has the request")
        gate.release(told)
        asserts.tokens_until(stream, told, gate)
    _serving(grpc_target, True)


@requirement("OE-HLT-001", "SMG-HLT-005", needs=(SCRIPTED,))
def test_light_check_makes_no_engine_request(grpc_target: Target) -> None:
    """The server MUST NOT hand the engine a request for a light health check."""
    for _ in range(3):
        grpc_target.prepare(None, THREE, open=True)
        _serving(grpc_target, True)
    asserts.equal("submissions at the engine", 0, len(grpc_target.engine.submissions))


@requirement("OE-ERR-017", "SMG-ERR-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("ending", [Ending.FAILURE, Ending.NOTHING], ids=["failure", "early-end"])
def test_failing_requests_leave_health_alone(grpc_target: Target, ending: Ending) -> None:
    """The server SHOULD stay healthy through requests that fail, as long as its engine is."""
    for number in range(3):
        asserts.ended(grpc_target.play(script(one_by_one(tokens(1)), ending=ending), Request(f"fails {number}")))
        _serving(grpc_target, True)


@requirement("OE-ERR-017", "SMG-ERR-005", needs=(SCRIPTED,))
def test_cancelled_and_aborted_requests_leave_health_alone(grpc_target: Target) -> None:
    """The server SHOULD stay healthy through requests that are cancelled or aborted."""
    for number, leave in enumerate(("cancel", "abort")):
        gate = grpc_target.prepare(f"gone {number}", THREE)
        stream = grpc_target.generate(Request(f"gone {number}"))
        asserts.reached(gate.submitted(), "the engine has the request")
        if leave == "cancel":
            stream.cancel()
        else:
            asserts.done("an abort", functools.partial(grpc_target.client.abort, f"gone {number}"))
        asserts.reached(gate.settled(), "the engine lets go of the request")
        _serving(grpc_target, True)


@requirement("OE-HLT-009", needs=(SCRIPTED, REFERENCE))
def test_draining_server_says_so(grpc_target: InprocessTarget) -> None:
    """The server SHOULD report DRAINING while it takes no new work and finishes what it has accepted.

    The protocol has no call that begins to drain, so this is asked of the reference servicer, which can be told.
    """
    gate = grpc_target.prepare("accepted", THREE)
    grpc_target.generate(Request("accepted"))
    asserts.reached(gate.submitted(), "the engine has the request")
    grpc_target.drain()
    health = asserts.done("a health check", grpc_target.client.health)
    asserts.true("the server says that it drains", isinstance(health, Health) and "DRAINING" in health.words, health)
