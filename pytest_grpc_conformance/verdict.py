"""What a run says about one case on one target: a violation, and the verdict as one pure function."""

from __future__ import annotations

import enum
from dataclasses import dataclass


class Violation(AssertionError):
    """The target broke a requirement. Only ``asserts.py`` raises it; anything else is not the target's fault."""

    def __init__(self, problem: str, *, expected: str = "", observed: str = "", evidence: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.expected = expected
        self.observed = observed
        self.evidence = evidence


class Verdict(enum.Enum):
    """The answer for one case on one target."""

    PASSED = "passed"
    FAILED = "failed"
    DEVIATES = "deviates"
    """It fails as a declared deviation says."""
    UNEXPECTED_PASS = "unexpected pass"
    """A deviation is declared, but the case passes: the declaration is out of date."""
    NOT_APPLICABLE = "not applicable"
    """The target cannot carry the case; the reason is told."""
    BROKEN = "broken"
    """The case could not be judged: the harness, the case or the environment failed."""

    @property
    def conforms(self) -> bool:
        """Whether a run with this verdict can still be green."""
        return self in (Verdict.PASSED, Verdict.DEVIATES, Verdict.NOT_APPLICABLE)


class Outcome(enum.Enum):
    """How one phase of a test ended, in neutral words."""

    PASSED = "passed"
    VIOLATION = "violation"
    ERROR = "error"
    NOT_APPLICABLE = "not applicable"


@dataclass(frozen=True, slots=True)
class Phases:
    """The outcomes of set-up, call and tear-down; ``None`` where the phase did not run."""

    setup: Outcome | None
    call: Outcome | None
    teardown: Outcome | None


def judge(phases: Phases, *, deviation_declared: bool) -> Verdict:
    """The verdict for a case from its phases.

    A set-up or tear-down that fails is never excused by a declared deviation, and a violation in it does not
    count as the target's failure of this case.
    """
    if phases.teardown not in (None, Outcome.PASSED):
        return Verdict.BROKEN
    if Outcome.NOT_APPLICABLE in (phases.setup, phases.call):
        return Verdict.NOT_APPLICABLE
    if phases.setup is not Outcome.PASSED or phases.call in (None, Outcome.ERROR):
        return Verdict.BROKEN
    if phases.call is Outcome.VIOLATION:
        return Verdict.DEVIATES if deviation_declared else Verdict.FAILED
    return Verdict.UNEXPECTED_PASS if deviation_declared else Verdict.PASSED
