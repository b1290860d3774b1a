"""What fails says so once, in the protocol's own form, keeps what was delivered, and hurts nobody else."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.script import (
    Advance,
    Ending,
    Finish,
    FinishReason,
    Refusal,
    Script,
    Step,
    StopToken,
    Token,
    one_by_one,
    script,
    side_by_side,
    tokens,
)
from pytest_grpc_conformance.marker import REFERENCE, SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Health, Request
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.targets.base import Target

THREE = script(one_by_one(tokens(3)))
FAILURE = Ending.FAILURE
AFTER = pytest.mark.parametrize("told", [0, 1, 7, 40], ids=lambda told: f"told={told}")
TEXTS = pytest.mark.parametrize(
    "text",
    ["", "x" * 65_536, "\u4e16" * 30_000, "50%\n\u00e9 \u4e16 \U0001f600\x00\x7f", "half \udcff of a character"],
    ids=["empty", "long", "long-non-ascii", "odd", "surrogate"],
)
SECRET = 'SECRET-7f3a: Traceback: File "/opt/engine/worker.py", line 12'
LEAKS = ("SECRET-7f3a", "/opt/engine", ".py", "Traceback")
ZERO = (
    (Request("none"), script()),
    (Request("none"), script(one_by_one((Token(2),)))),
    (Request("none", stops=(StopToken(9),)), script(one_by_one((Token(9),)))),
)


def _failing(told: int, text: str = "engine failure") -> Script:
    return script(one_by_one(tokens(told)), ending=FAILURE, failure=text)


def _words(collected: Collected) -> str:
    """Everything that a failed call says about its failure."""
    return "\n".join([collected.status.details, *(error.message for error in collected.errors)])


# No tokens at all.


@requirement("OE-GEN-011", "SMG-CMP-002", needs=(SCRIPTED,))
@pytest.mark.parametrize(("asked", "told"), ZERO, ids=["window-full", "end-of-sequence", "stop-token"])
def test_generation_without_tokens_has_one_terminal_message(grpc_target: Target, asked: Request, told: Script) -> None:
    """The server MUST end a generation of no tokens with its one terminal message, not with nothing."""
    collected = asserts.ended(grpc_target.play(told, asked))
    expected = course(told, asked.parameters(), grpc_target.engine.eos_token_ids)
    asserts.outcome(collected, expected, asked, grpc_target.protocol)


# The form of a failure.


@requirement("OE-ERR-002", "OE-ERR-005", "SMG-ERR-001", needs=(SCRIPTED,))
@AFTER
def test_engine_failure_has_the_protocols_form(grpc_target: Target, told: int) -> None:
    """The server MUST report an engine's failure of an accepted request once, in the protocol's own form."""
    collected = asserts.ended(grpc_target.play(_failing(told), Request("fails")))
    asserts.failed(collected, grpc_target.protocol)


@requirement("OE-GEN-017", "SMG-GEN-012", needs=(SCRIPTED,))
@AFTER
def test_engine_that_ends_early_is_a_failure(grpc_target: Target, told: int) -> None:
    """The server MUST report a request that the engine ends without a finish as failed, not as complete."""
    early = script(one_by_one(tokens(told)), ending=Ending.NOTHING)
    collected = asserts.ended(grpc_target.play(early, Request("early")))
    asserts.failed(collected, grpc_target.protocol)


@requirement("OE-FIN-010", "SMG-ERR-003", needs=(SCRIPTED,))
@AFTER
def test_failure_is_no_finish(grpc_target: Target, told: int) -> None:
    """The server MUST NOT send a terminal message of success for a sequence whose request failed."""
    collected = asserts.ended(grpc_target.play(_failing(told), Request("fails")))
    finishes = [finish for sequence in collected.sequences.values() for finish in sequence.finishes]
    asserts.equal("terminal messages of success", [], finishes)


@requirement("OE-ERR-016", "SMG-ERR-003", needs=(SCRIPTED,))
@pytest.mark.parametrize("told", [1, 7, 40], ids=lambda told: f"told={told}")
def test_failure_keeps_what_was_delivered(grpc_target: Target, told: int) -> None:
    """The server SHOULD deliver, once and in order, all tokens that precede a failure."""
    collected = asserts.ended(grpc_target.play(_failing(told), Request("fails")))
    asserts.equal("sequences with tokens", [0], list(collected.sequences))
    asserts.token_ids(tokens(told), collected.sequences[0].tokens, "the part before the failure")


@requirement("OE-ERR-004", "SMG-ERR-001", needs=(SCRIPTED,))
def test_nothing_follows_a_failure(grpc_target: Target) -> None:
    """The server MUST NOT send anything after the failure of a request."""
    gate = grpc_target.prepare("fails", _failing(3))
    stream = grpc_target.generate(Request("fails"))
    gate.release(3)
    asserts.tokens_until(stream, 3, gate)
    gate.release_all()
    collected = asserts.ended(stream, gate)
    asserts.failed(collected, grpc_target.protocol)
    asserts.token_ids(tokens(3), collected.sequences[0].tokens, "the failed request")


@requirement("OE-ERR-008", "OE-N-008", "SMG-N-007", needs=(SCRIPTED,))
def test_failure_ends_every_open_sequence(grpc_target: Target) -> None:
    """The server MUST end all open sequences with one failure; a finished one keeps its finish."""
    halves = side_by_side(tokens(2), tokens(4, start=200))[:3]
    told = script(halves, ending=FAILURE)
    collected = asserts.ended(grpc_target.play(told, Request("fails", num_sequences=2)))
    asserts.failed(collected, grpc_target.protocol)
    asserts.equal("the set of sequence indexes", {0, 1}, set(collected.sequences))
    asserts.token_ids(tokens(2), collected.sequences[0].tokens, "sequence 0")
    asserts.token_ids(tokens(3, start=200), collected.sequences[1].tokens, "sequence 1")
    asserts.equal("terminal messages of the open sequence", [], collected.sequences[1].finishes)


@requirement("OE-N-008", needs=(SCRIPTED,))
def test_finished_sequence_keeps_its_finish_through_a_failure(grpc_target: Target) -> None:
    """The server MUST leave the terminal message of a finished sequence in place when the request fails."""
    told = script(side_by_side(tokens(2), tokens(4, start=200))[:3], ending=FAILURE)
    collected = asserts.ended(grpc_target.play(told, Request("fails", num_sequences=2)))
    finishes = [finish.finish for finish in collected.sequences[0].finishes] if 0 in collected.sequences else []
    asserts.equal("terminal messages of the finished sequence", [Finish(FinishReason.LENGTH)], finishes)


@requirement("OE-USE-003", needs=(SCRIPTED,))
@AFTER
def test_failure_tells_what_was_used(grpc_target: Target, told: int) -> None:
    """The server SHOULD put the usage so far on the in-band error of a failed request."""
    collected = asserts.ended(grpc_target.play(_failing(told), Request("fails", prompt=(5, 6, 7, 8))))
    usages = [(usage.prompt, usage.completion) for _, usage in collected.usages]
    asserts.equal("usage (prompt, completion)", [(4, told)], usages)
    asserts.usage_only_on_last(collected)


# The words of a failure.


@requirement("OE-ERR-009", "OE-ERR-010", "SMG-ERR-004", needs=(SCRIPTED,))
@pytest.mark.parametrize("ending", [FAILURE, Ending.NOTHING], ids=["failure", "early-end"])
def test_failure_has_a_code_and_words(grpc_target: Target, ending: Ending) -> None:
    """The server SHOULD name the cause of a failure by a code and in words."""
    collected = asserts.ended(grpc_target.play(script(one_by_one(tokens(2)), ending=ending), Request("fails")))
    asserts.failed(collected, grpc_target.protocol)
    asserts.true("a failure is told in words", bool(_words(collected).strip()), _words(collected))
    asserts.equal("errors without a cause", [], [e for e in collected.errors if e.code in ("", "UNSPECIFIED")])


@requirement("OE-ERR-011", needs=(SCRIPTED,))
@pytest.mark.parametrize(("kind", "retryable"), [("full", True), ("invalid", False)], ids=["no-room", "invalid"])
@pytest.mark.parametrize("told", [0, 1], ids=lambda told: f"told={told}")
def test_retryable_is_true_when_a_retry_can_help(grpc_target: Target, kind: str, retryable: bool, told: int) -> None:
    """The server MUST call an error retryable after overload, and not when the request is at fault."""
    collected = asserts.ended(grpc_target.play(_failing(told).but(failure_kind=kind), Request("fails")))
    asserts.failed(collected, grpc_target.protocol)
    asserts.equal("retryable on the error", [retryable], [error.retryable for error in collected.errors])


@requirement("OE-ERR-013", "SMG-ERR-006", needs=(SCRIPTED,))
@pytest.mark.parametrize("told", [0, 1], ids=lambda told: f"told={told}")
def test_request_that_is_shed_says_overload(grpc_target: Target, told: int) -> None:
    """The server SHOULD name overload as the cause when the engine drops an accepted request for it."""
    collected = asserts.ended(grpc_target.play(_failing(told).but(failure_kind="full"), Request("shed")))
    asserts.failed(collected, grpc_target.protocol)
    if grpc_target.protocol.traits.errors_in_band:
        asserts.equal("the code of the error", ["OVERLOADED"], [error.code for error in collected.errors])
    else:
        asserts.status(collected, "RESOURCE_EXHAUSTED", "UNAVAILABLE")


@requirement("GRPC-SVC-14", needs=(SCRIPTED, REFERENCE))
@pytest.mark.parametrize("told", [0, 1], ids=lambda told: f"told={told}")
def test_failure_does_not_leak_the_engines_text(grpc_target: Target, told: int) -> None:
    """The server MUST NOT pass internal text of a failing engine on: no path, no traceback, no secret.

    The row forbids it for UNAVAILABLE only, and some adapters pass the text on elsewhere on purpose, so this is
    asked of the reference servicers alone.
    """
    collected = asserts.ended(grpc_target.play(_failing(told, SECRET), Request("fails")))
    asserts.failed(collected, grpc_target.protocol)
    asserts.equal("internal text in the failure", [], [leak for leak in LEAKS if leak in _words(collected)])


@requirement("OE-ERR-002", "SMG-ERR-001", needs=(SCRIPTED,))
@TEXTS
def test_engines_text_does_not_change_the_form(grpc_target: Target, text: str) -> None:
    """The server MUST report a failure in the protocol's form whatever text the engine gives for it."""
    collected = asserts.ended(grpc_target.play(_failing(1, text), Request("fails")))
    asserts.failed(collected, grpc_target.protocol)


@requirement("OE-ERR-019", "SMG-ERR-002", needs=(SCRIPTED,))
@TEXTS
def test_refusals_text_does_not_change_its_code(grpc_target: Target, text: str) -> None:
    """The server SHOULD refuse as INVALID_ARGUMENT what the engine refuses as invalid, in any words."""
    refusing = script(refusal=Refusal("invalid", text))
    asserts.refused(asserts.ended(grpc_target.play(refusing, Request("refused"))), "INVALID_ARGUMENT")


# Refusals and a dead engine.


@requirement("OE-ERR-013", "SMG-ERR-006", needs=(SCRIPTED,))
def test_full_engine_is_a_refusal_to_be_retried(grpc_target: Target) -> None:
    """The server SHOULD refuse with RESOURCE_EXHAUSTED or UNAVAILABLE what the engine has no room for."""
    refusing = script(refusal=Refusal("full"))
    collected = asserts.ended(grpc_target.play(refusing, Request("refused")))
    asserts.refused(collected, "RESOURCE_EXHAUSTED", "UNAVAILABLE")


@requirement("OE-ERR-002", "SMG-ERR-001", needs=(SCRIPTED,))
def test_engine_that_dies_fails_every_open_stream(grpc_target: Target) -> None:
    """The server MUST fail every open stream when the engine dies, also one that has had no token yet."""
    gates = [grpc_target.prepare(f"open {told}", THREE) for told in (0, 1, 2)]
    streams = [grpc_target.generate(Request(f"open {told}")) for told in (0, 1, 2)]
    for told, (gate, stream) in enumerate(zip(gates, streams, strict=True)):
        asserts.reached(gate.submitted(), "the engine has the request")
        gate.release(told)
        asserts.tokens_until(stream, told, gate)
    grpc_target.engine.kill(SECRET)
    for stream in streams:
        asserts.failed(asserts.ended(stream, *gates), grpc_target.protocol)


@requirement("GRPC-SVC-14", needs=(SCRIPTED, REFERENCE))
def test_engine_that_dies_leaks_no_text(grpc_target: Target) -> None:
    """The server MUST NOT pass internal text of an engine that died on to a client, least as UNAVAILABLE."""
    gate = grpc_target.prepare("open", THREE)
    stream = grpc_target.generate(Request("open"))
    asserts.reached(gate.submitted(), "the engine has the request")
    grpc_target.engine.kill(SECRET)
    words = _words(asserts.ended(stream, gate))
    words += _words(asserts.ended(grpc_target.generate(Request("later"))))
    asserts.equal("internal text in the failures", [], [leak for leak in LEAKS if leak in words])


@requirement("OE-ERR-001", "SMG-ERR-001", needs=(SCRIPTED,))
def test_dead_engine_refuses_new_work(grpc_target: Target) -> None:
    """The server MUST refuse a request with a non-OK status and no message while its engine is dead."""
    grpc_target.engine.kill()
    asserts.refused(asserts.ended(grpc_target.generate(Request("refused"))))


# The others.


@requirement("OE-ERR-017", "SMG-ERR-005", needs=(SCRIPTED,))
@pytest.mark.parametrize("ending", [FAILURE, Ending.NOTHING], ids=["failure", "early-end"])
def test_failure_leaves_other_requests_alone(grpc_target: Target, ending: Ending) -> None:
    """The server SHOULD keep other requests and its health through the failure of one request."""
    stays, later, wire = Request("stays"), Request("later"), grpc_target.protocol
    expected = course(THREE, stays.parameters(), grpc_target.engine.eos_token_ids)
    gate = grpc_target.prepare("stays", THREE)
    stream = grpc_target.generate(stays)
    asserts.reached(gate.submitted(), "the engine has the request")
    asserts.ended(grpc_target.play(script(one_by_one(tokens(1)), ending=ending), Request("fails")))
    health = asserts.done("a health check", grpc_target.client.health)
    asserts.true("the server is healthy after a request failed", isinstance(health, Health) and health.serving, health)
    gate.release_all()
    asserts.outcome(asserts.ended(stream, gate), expected, stays, wire)
    asserts.outcome(asserts.ended(grpc_target.play(THREE, later)), expected, later, wire)


@requirement("OE-ERR-017", "SMG-ERR-005", needs=(SCRIPTED,))
def test_refusals_leave_later_requests_alone(grpc_target: Target) -> None:
    """The server SHOULD serve a good request after it has refused a bad one twice."""
    for _ in range(2):
        asserts.refused(asserts.ended(grpc_target.play(script(refusal=Refusal()), Request("refused"))))
    good = Request("good")
    expected = course(THREE, good.parameters(), grpc_target.engine.eos_token_ids)
    asserts.outcome(asserts.ended(grpc_target.play(THREE, good)), expected, good, grpc_target.protocol)


@requirement("OE-ERR-021", "SMG-ERR-008", needs=(SCRIPTED,))
def test_result_that_cannot_be_sent_fails_its_request(grpc_target: Target) -> None:
    """The server SHOULD fail a request whose result does not fit into a message, and stop the engine."""
    poisoned = script(one_by_one(tokens(1)), Step((Advance(0, (Token(-1),)),)), one_by_one(tokens(3, start=200)))
    gate = grpc_target.prepare("poisoned", poisoned)
    stream = grpc_target.generate(Request("poisoned"))
    gate.release(2)
    asserts.failed(asserts.ended(stream, gate), grpc_target.protocol)
    asserts.reached(gate.aborted(), "an abort reaches the engine")
