"""Scripts at random: whatever the engine yields, in whatever steps and order, the client gets exactly that."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import pytest

from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.engines.course import Course, course
from pytest_grpc_conformance.marker import SCRIPTED, requirement
from pytest_grpc_conformance.protocols.collected import Collected
from pytest_grpc_conformance.random_scripts import Play, check_any
from pytest_grpc_conformance.targets.base import Target

REPLACEMENT = "\ufffd"


@requirement("OE-TOK-001", "OE-TOK-003", "OE-LP-003", "OE-N-005", "SMG-CHK-003", "SMG-CMP-001", needs=(SCRIPTED,))
def test_any_script_gives_its_outcome(grpc_target: Target, pytestconfig: pytest.Config) -> None:
    """The server MUST send the ids, text, scores and ends of the engine, whatever it yields and when."""
    numbers = itertools.count()
    seed = pytestconfig.getoption("--hypothesis-seed", None)
    check_any(lambda play: _gives_its_outcome(play, grpc_target, numbers), seed=seed, patience=grpc_target.timeout)


def _gives_its_outcome(play: Play, target: Target, numbers: Iterator[int]) -> None:
    runs = []
    for generation, early in zip(play.generations, play.early, strict=True):
        request = generation.request.but(request_id=f"random-{next(numbers)}")
        gate = target.prepare(request.request_id, generation.script)
        gate.release(min(early, gate.steps))
        runs.append((request, gate, target.generate(request)))
    for which, count in play.releases:
        gate = runs[which][1]
        gate.release(min(count, gate.steps - gate.released))
    for _, gate, _ in runs:
        gate.release_all()
    for (request, gate, stream), generation in zip(runs, play.generations, strict=True):
        collected = asserts.ended(stream, gate)
        asserts.ordered(collected, request, target.protocol)
        told = course(generation.script, request.parameters(), target.engine.eos_token_ids)
        asserts.outcome(collected, _with_the_end_as_it_came(told, collected), request, target.protocol)


def _with_the_end_as_it_came(told: Course, collected: Collected) -> Course:
    """The course, where a character that is incomplete at the end may be dropped instead of shown as U+FFFD."""
    outcome = tuple(
        sequence
        if collected.sequences[index].text.endswith(REPLACEMENT)
        else replace(sequence, text=sequence.text.removesuffix(REPLACEMENT))
        for index, sequence in enumerate(told.outcome)
    )
    return replace(told, outcome=outcome)
