"""What is drawn is legal and the same each time; what it finds is a violation with the smallest play."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings

from pytest_grpc_conformance.engines.course import course
from pytest_grpc_conformance.engines.gate import check_script
from pytest_grpc_conformance.engines.script import StopText
from pytest_grpc_conformance.random_scripts import EOS, Generation, Play, check_any, generations
from pytest_grpc_conformance.verdict import Violation

MANY = settings(
    max_examples=100,
    derandomize=True,
    database=None,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)


def _tokens(play: Play) -> int:
    return sum(len(a.tokens) for g in play.generations for step in g.script.steps for a in step.advances)


def _violation() -> Violation:
    return Violation("too many tokens", evidence="as seen")


def _at_most_two_tokens(failed: list[Play]) -> Callable[[Play], None]:
    """A check that remembers the plays which fail it."""

    def check(play: Play) -> None:
        if _tokens(play) > 2:
            failed.append(play)
            raise _violation()

    return check


@MANY
@given(generations())
def test_every_script_can_be_played_and_ends(generation: Generation) -> None:
    check_script(generation.script)
    played = course(generation.script, generation.request.parameters(), EOS)
    assert played.ending is None
    assert len(played.outcome) == (generation.request.num_sequences or 1)


@MANY
@given(generations())
def test_excluded_stop_texts_begin_with_a_token(generation: Generation) -> None:
    if generation.request.include_stop:
        return
    for sequence in course(generation.script, generation.request.parameters(), EOS).outcome:
        if sequence.finish is not None and isinstance(sequence.finish.match, StopText):
            assert b"".join(token.piece for token in sequence.tokens) == sequence.text.encode()


def test_plays_are_the_same_each_time() -> None:
    first: list[Play] = []
    check_any(first.append, seed=None, patience=60, examples=5)
    again: list[Play] = []
    check_any(again.append, seed=None, patience=60, examples=5)
    assert first == again
    assert len(first) == 5


def test_violation_has_the_smallest_play() -> None:
    failed: list[Play] = []
    with pytest.raises(Violation) as caught:
        check_any(_at_most_two_tokens(failed), seed=None, patience=60)
    assert _tokens(failed[-1]) == 3
    assert len(failed[-1].generations) == 1
    assert caught.value.evidence == f"as seen\n{failed[-1]}"
    assert "request: plain\nstep 1: [0] " in caught.value.evidence


def test_violation_that_does_not_come_again_counts() -> None:
    numbers = count()

    def check(play: Play) -> None:
        if next(numbers) == 3:
            raise _violation()

    with pytest.raises(Violation, match="too many tokens"):
        check_any(check, seed=None, patience=60)


def test_violation_is_made_smaller_for_a_limited_time() -> None:
    failed: list[Play] = []
    with pytest.raises(Violation) as caught:
        check_any(_at_most_two_tokens(failed), seed=None, patience=0)
    assert len(failed) == 1
    assert caught.value.evidence == f"as seen\n{failed[0]}"


def test_other_errors_are_not_made_violations() -> None:
    def check(play: Play) -> None:
        raise LookupError("a fault of the case")

    with pytest.raises(LookupError):
        check_any(check, seed=None, patience=60)
