"""The reference servicers send the very messages that the rules derive from a script, with the same bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from pytest_grpc_conformance import asserts, golden
from pytest_grpc_conformance.collection import TargetChoice
from pytest_grpc_conformance.marker import REFERENCE, SCRIPTED, requirement
from pytest_grpc_conformance.protocols.base import WireProtocol
from pytest_grpc_conformance.session import run_of
from pytest_grpc_conformance.targets.base import NotApplicable, Target

LoadGolden = Callable[[golden.Recipe], golden.Golden]


def _recipes(protocol: str) -> pytest.MarkDecorator:
    named = [pytest.param(recipe, id=f"{recipe.shape}={recipe.size}") for recipe in golden.recipes(protocol)]
    return pytest.mark.parametrize("recipe", named)


@pytest.fixture
def load_golden(pytestconfig: pytest.Config) -> LoadGolden:
    """Loads the golden of a recipe; with ``--grpc-update-golden`` it is written first, and the summary says so."""
    run = run_of(pytestconfig)

    def load(recipe: golden.Recipe) -> golden.Golden:
        changed = golden.write(recipe) if run.options.update_golden else None
        if changed is not None:
            run.notes.append(changed)
        return golden.load(recipe)

    return load


def _check(expected: golden.Golden, answers: Sequence[bytes], wire: WireProtocol) -> None:
    difference = golden.first_difference(expected, answers, wire.generate.response)
    if difference is not None:
        asserts.violation(f"not the golden: {difference.where}", difference.expected, difference.observed)


def _is_golden(target: Target, recipe: golden.Recipe, expected: golden.Golden) -> None:
    gate = target.prepare(recipe.request.request_id, recipe.script, open=True)
    collected = asserts.ended(target.client.send(expected.request, label=recipe.name), gate)
    _check(expected, [item.raw for item in collected.received], target.protocol)
    asserts.status(collected, "OK")


@requirement("OE-GEN-020", "OE-TOK-001", "OE-TOK-002", needs=(SCRIPTED, REFERENCE))
@_recipes("openengine")
def test_openengine_messages(grpc_target: Target, recipe: golden.Recipe, load_golden: LoadGolden) -> None:
    """The server MUST send the messages that the script calls for, all of them, byte for byte."""
    _is_golden(grpc_target, recipe, load_golden(recipe))


@requirement("SMG-CHK-001", "SMG-CMP-001", needs=(SCRIPTED, REFERENCE))
@_recipes("smg")
def test_smg_messages(grpc_target: Target, recipe: golden.Recipe, load_golden: LoadGolden) -> None:
    """The server MUST send the messages that the script calls for, all of them, byte for byte."""
    _is_golden(grpc_target, recipe, load_golden(recipe))


@requirement("OE-TOK-002", "SMG-CHK-001", needs=(SCRIPTED, REFERENCE))
def test_other_backend(
    grpc_target: Target, grpc_target_choice: TargetChoice, load_golden: LoadGolden, pytestconfig: pytest.Config
) -> None:
    """The server MUST send the same bytes with either back end of protobuf."""
    options, protocol = run_of(pytestconfig).options, grpc_target.protocol.name
    other, answers = golden.answers_in_other_backend(
        protocol, grpc_target_choice.target, options.target, options.timeout
    )
    if answers is None:
        raise NotApplicable("backend-missing", f"protobuf has no {other!r} back end here")
    for recipe in golden.recipes(protocol):
        answer = answers[recipe.file]
        _check(load_golden(recipe), answer.messages, grpc_target.protocol)
        asserts.equal(f"the status after {recipe.file} with the {other} back end", "OK", answer.status)
