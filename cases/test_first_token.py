"""Tokens leave as the engine produces them: the engine is held, and what it has said must already be there."""

from __future__ import annotations

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.script import Advance, Step, StopText, one_by_one, pieces, script, tokens
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.targets.base import Target


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
def test_first_token_arrives_while_the_second_is_held(grpc_target: Target) -> None:
    """The server SHOULD send the first token while the second does not exist yet."""
    gate = grpc_target.prepare("first", script(one_by_one(tokens(2))))
    stream = grpc_target.generate(Request("first"))
    gate.release(1)
    asserts.token_ids(tokens(1), asserts.tokens_until(stream, 1, gate), "the first message")
    gate.release_all()
    asserts.ended(stream, gate)


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
def test_each_token_arrives_while_the_next_is_held(grpc_target: Target) -> None:
    """The server SHOULD send token k while token k + 1 does not exist yet."""
    told = tokens(21)
    gate = grpc_target.prepare("held", script(one_by_one(told)))
    stream = grpc_target.generate(Request("held"))
    for at in range(20):
        gate.release(1)
        came = asserts.tokens_until(stream, 1, gate)
        asserts.token_ids(told[at : at + 1], came, f"the message for token {at + 1}")
    gate.release_all()
    asserts.ended(stream, gate)


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
def test_all_tokens_of_a_step_arrive_while_the_next_is_held(grpc_target: Target) -> None:
    """The server SHOULD send every token of an engine step while the next step does not exist yet."""
    told = tokens(6)
    gate = grpc_target.prepare("step", script(Step((Advance(0, told[:5]),)), one_by_one(told[5:])))
    stream = grpc_target.generate(Request("step"))
    gate.release(1)
    asserts.token_ids(told[:5], asserts.tokens_until(stream, 5, gate), "the first step")
    gate.release_all()
    asserts.ended(stream, gate)


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
def test_each_sequence_arrives_while_the_other_is_held(grpc_target: Target) -> None:
    """The server SHOULD send a token of one sequence while the other sequences have none."""
    turns = [(at % 2, token) for at, token in enumerate(tokens(8))]
    gate = grpc_target.prepare("turns", script(Step((Advance(index, (token,)),)) for index, token in turns))
    stream = grpc_target.generate(Request("turns", num_sequences=2, temperature=1.0))
    for at, (index, token) in enumerate(turns[:-1]):
        gate.release(1)
        came = asserts.tokens_until(stream, 1, gate)
        asserts.token_ids([token], came, f"step {at + 1}, which is of sequence {index}")
    gate.release_all()
    asserts.ended(stream, gate)


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
def test_stop_text_that_cannot_match_delays_nothing(grpc_target: Target) -> None:
    """The server SHOULD send a token at once when its text cannot begin a stop text of the request."""
    told = pieces("a", "b", "c", "d")
    gate = grpc_target.prepare("no-match", script(one_by_one(told)))
    stream = grpc_target.generate(Request("no-match", stops=(StopText("QQQQQQ"),)))
    for token in told[:3]:
        gate.release(1)
        text = token.piece.decode() if grpc_target.protocol.traits.carries_text else ""
        came = asserts.output_until(stream, 1, text, gate)
        asserts.token_ids([token], came, f"the message for {token.piece!r}")
    gate.release_all()
    asserts.ended(stream, gate)
