"""The verdict for a case, from how its phases ended."""

from __future__ import annotations

from itertools import product

import pytest

from pytest_grpc_conformance.verdict import Outcome, Phases, Verdict, judge

PASSED, VIOLATION, ERROR, NOT_APPLICABLE = Outcome
ENDINGS = (None, *Outcome)

Ending = tuple[Outcome | None, Outcome | None, Outcome | None]
"""Of set-up, call and tear-down."""

# The verdict without and with a declared deviation. What the table leaves out is broken.
TABLE: dict[Ending, tuple[Verdict, Verdict]] = {
    (PASSED, PASSED, None): (Verdict.PASSED, Verdict.UNEXPECTED_PASS),
    (PASSED, PASSED, PASSED): (Verdict.PASSED, Verdict.UNEXPECTED_PASS),
    (PASSED, VIOLATION, None): (Verdict.FAILED, Verdict.DEVIATES),
    (PASSED, VIOLATION, PASSED): (Verdict.FAILED, Verdict.DEVIATES),
    (PASSED, NOT_APPLICABLE, None): (Verdict.NOT_APPLICABLE, Verdict.NOT_APPLICABLE),
    (PASSED, NOT_APPLICABLE, PASSED): (Verdict.NOT_APPLICABLE, Verdict.NOT_APPLICABLE),
    (NOT_APPLICABLE, None, None): (Verdict.NOT_APPLICABLE, Verdict.NOT_APPLICABLE),
    (NOT_APPLICABLE, None, PASSED): (Verdict.NOT_APPLICABLE, Verdict.NOT_APPLICABLE),
}
# A call never follows a set-up that did not pass.
POSSIBLE = [
    (setup, call, teardown)
    for setup, call, teardown in product(ENDINGS, repeat=3)
    if setup is not None and (call is not None) <= (setup is PASSED)
]


@pytest.mark.parametrize("declared", [False, True], ids=["plain", "declared"])
@pytest.mark.parametrize(
    "phases", POSSIBLE, ids=lambda p: "-".join(e.value.replace(" ", "_") if e else "none" for e in p)
)
def test_verdict_of_every_combination(phases: Ending, declared: bool) -> None:
    expected = TABLE.get(phases, (Verdict.BROKEN, Verdict.BROKEN))[declared]
    assert judge(Phases(*phases), deviation_declared=declared) is expected


def test_only_a_violation_in_the_call_is_a_failure_of_the_target() -> None:
    blamed = [
        phases
        for phases in product(ENDINGS, repeat=3)
        if judge(Phases(*phases), deviation_declared=False) is Verdict.FAILED
    ]
    assert {call for _, call, _ in blamed} == {VIOLATION}
    assert {setup for setup, _, _ in blamed} == {PASSED}
    assert {teardown for _, _, teardown in blamed} == {None, PASSED}


def test_a_deviation_excuses_nothing_but_a_violation() -> None:
    for phases in product(ENDINGS, repeat=3):
        plain, declared = (judge(Phases(*phases), deviation_declared=known) for known in (False, True))
        if plain is not declared:
            assert (plain, declared) in ((Verdict.FAILED, Verdict.DEVIATES), (Verdict.PASSED, Verdict.UNEXPECTED_PASS))


def test_green_verdicts() -> None:
    green = {verdict for verdict in Verdict if verdict.conforms}
    assert green == {Verdict.PASSED, Verdict.DEVIATES, Verdict.NOT_APPLICABLE}
