"""Tokens leave as the engine produces them: the engine is held, and what it has said must already be there."""

from __future__ import annotations

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.script import one_by_one, script, tokens
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.targets.base import Target


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
def test_first_token_arrives_while_the_second_is_held(grpc_target: Target) -> None:
    """The server SHOULD send the first token while the second does not exist yet."""
    gate = grpc_target.prepare("first", script(one_by_one(tokens(2))))
    stream = grpc_target.generate(Request("first"))
    gate.release(1)
    event = asserts.next_tokens(stream, gate)
    asserts.token_ids(tokens(1), event.tokens, "the first message")
    gate.release_all()
    asserts.ended(stream, gate)


@requirement("OE-GEN-018", "SMG-GEN-016", needs=(SCRIPTED,))
@pytest.mark.parametrize("last", [2, 5, 20], ids=lambda last: f"k={last}")
def test_each_token_arrives_while_the_next_is_held(grpc_target: Target, last: int) -> None:
    """The server SHOULD send token k while token k + 1 does not exist yet."""
    told = tokens(last + 1)
    gate = grpc_target.prepare("held", script(one_by_one(told)))
    stream = grpc_target.generate(Request("held"))
    for at in range(last):
        gate.release(1)
        event = asserts.next_tokens(stream, gate)
        asserts.token_ids(told[at : at + 1], event.tokens, f"message {at + 1}")
    gate.release_all()
    asserts.ended(stream, gate)
