"""From pytest's phases to verdicts: what each phase said, the verdict once all are in, and the screen for a failure."""

from __future__ import annotations

import shlex
from dataclasses import replace
from typing import Any

import pytest

from pytest_grpc_conformance import deviation
from pytest_grpc_conformance.collection import Case
from pytest_grpc_conformance.reports.document import Failure, Result
from pytest_grpc_conformance.session import Run
from pytest_grpc_conformance.targets.base import NotApplicable
from pytest_grpc_conformance.transcript import Transcript, harmless
from pytest_grpc_conformance.verdict import Outcome, Phases, Verdict, Violation, judge

TRANSCRIPT = pytest.StashKey[Transcript]()
"""Where the target fixture leaves the transcript of an item."""
PHASES = pytest.StashKey[dict[str, Outcome]]()
FIRST_RESULT = pytest.StashKey[Result]()
ATTRIBUTE = "grpc_conformance"
"""The name under which a test report carries a result from a worker to the controller."""


def observe(
    item: pytest.Item, case: Case, call: pytest.CallInfo[None], report: pytest.TestReport, run: Run
) -> None:
    """Take one phase into account: shape the report that pytest prints, and attach the result at the end."""
    phases = item.stash.setdefault(PHASES, {})
    phases[report.when or "call"] = outcome_of(call, report)
    error = call.excinfo.value if call.excinfo else None
    result = _result(item, case, error, report, run)
    if FIRST_RESULT not in item.stash or (error is not None and not item.stash[_FAULTY]):
        # The first phase that goes wrong tells why; what goes wrong after it is mostly its consequence.
        item.stash[FIRST_RESULT] = result
        item.stash[_FAULTY] = error is not None
    elif report.when == "call":
        item.stash[FIRST_RESULT] = result
    _shape(report, result, error)
    if report.when == "teardown":
        final = replace(
            item.stash[FIRST_RESULT], verdict=_verdict(item, case, run), seconds=_seconds(item, report)
        )
        item.user_properties.append(("verdict", final.verdict.value))
        setattr(report, ATTRIBUTE, final.to_data())
    else:
        item.stash[_SECONDS] = _seconds(item, report)


_SECONDS = pytest.StashKey[float]()
_FAULTY = pytest.StashKey[bool]()


def _seconds(item: pytest.Item, report: pytest.TestReport) -> float:
    return item.stash.get(_SECONDS, 0.0) + report.duration


def outcome_of(call: pytest.CallInfo[None], report: pytest.TestReport) -> Outcome:
    """What a phase said. A plain skip in a case is a reason not to judge it, so it counts as not applicable."""
    if call.excinfo is None:
        return Outcome.PASSED
    if isinstance(call.excinfo.value, Violation):
        return Outcome.VIOLATION
    if isinstance(call.excinfo.value, NotApplicable | pytest.skip.Exception):
        return Outcome.NOT_APPLICABLE
    return Outcome.ERROR


def _deviation(item: pytest.Item, case: Case, run: Run) -> deviation.Deviation | None:
    target = case.choice.target
    return deviation.find(
        deviation.declared(), target, run.version_of(target), case.requirements, case.case_id
    )


def _verdict(item: pytest.Item, case: Case, run: Run) -> Verdict:
    phases = item.stash[PHASES]
    return judge(
        Phases(phases.get("setup"), phases.get("call"), phases.get("teardown")),
        deviation_declared=_deviation(item, case, run) is not None,
    )


def _result(
    item: pytest.Item, case: Case, error: BaseException | None, report: pytest.TestReport, run: Run
) -> Result:
    phases = {"setup": Outcome.PASSED, "call": Outcome.PASSED} | item.stash[PHASES]
    declared = _deviation(item, case, run)
    verdict = judge(
        Phases(phases["setup"], phases["call"], phases.get("teardown")),
        deviation_declared=declared is not None,
    )
    if report.when == "setup" and verdict is Verdict.UNEXPECTED_PASS:
        verdict = Verdict.PASSED  # The call has still to come.
    return Result(
        case.case_id,
        case.choice.target,
        case.choice.protocol,
        case.requirements,
        case.summary,
        verdict,
        report.duration,
        _reason(error, verdict, declared),
        _failure(item, case, error, run)
        if verdict in (Verdict.FAILED, Verdict.DEVIATES, Verdict.BROKEN)
        else None,
    )


def _reason(error: BaseException | None, verdict: Verdict, declared: deviation.Deviation | None) -> str:
    if isinstance(error, NotApplicable):
        return f"{error.reason} [{error.code}]"
    if verdict is Verdict.NOT_APPLICABLE:
        return f"skipped: {error}"
    if verdict is Verdict.BROKEN and error is not None:
        return harmless(f"{type(error).__name__}: {error}", 300)
    if declared is not None and verdict in (Verdict.DEVIATES, Verdict.UNEXPECTED_PASS):
        return f"{declared.requirement}: {declared.reason}"
    return ""


def _failure(item: pytest.Item, case: Case, error: BaseException | None, run: Run) -> Failure:
    transcript = item.stash.get(TRANSCRIPT, None)
    tail = transcript.tail() if transcript else ""
    again = reproduce(item, case, run)
    if isinstance(error, Violation):
        observed = "\n".join(filter(None, (error.observed, error.evidence)))
        return Failure(error.problem, error.expected, observed, tail, again)
    return Failure(f"{type(error).__name__}: {error}" if error else "", transcript=tail, reproduce=again)


def reproduce(item: pytest.Item, case: Case, run: Run) -> str:
    """A command line that runs this case alone on this target."""
    options = run.options
    words = ["pytest", "--pyargs", "pytest_grpc_conformance.cases"]
    if "pytest_grpc_conformance" not in item.nodeid and "cases/" not in item.nodeid:
        words = ["pytest", item.nodeid.partition("::")[0]]
    if options.command is not None:
        words += ["--grpc-command", options.command]
    elif options.address is not None:
        words += ["--grpc-address", options.address]
    else:
        words += ["--grpc-server", case.choice.target]
    words += ["--grpc-target", options.target] if options.target else []
    words += ["--grpc-protocol", case.choice.protocol, "-k", _keyword(item, case)]
    return shlex.join(words)


def _keyword(item: pytest.Item, case: Case) -> str:
    """A ``-k`` expression; ids may hold characters that such an expression cannot, then the function's name does."""
    name = getattr(item, "originalname", item.name)
    words = [name, *case.case_id.partition("[")[2].rstrip("]").split("-")]
    return " and ".join(word for word in words if word.replace("_", "").isalnum())


def screen(result: Result) -> str:
    """A failure on one screen: requirement, expected, observed, the transcript's tail, how to reproduce."""
    from pytest_grpc_conformance.requirements import catalogue

    failure = result.failure or Failure("")
    rows = [catalogue().get(row) for row in result.requirements]
    parts = [f"{failure.problem}", ""]
    for row in rows:
        parts += [
            f"requirement  {row.id} ({row.level}, {row.oracle}): {row.statement}",
            f"             {row.source}",
        ]
    for name, text in (("expected", failure.expected), ("observed", failure.observed)):
        parts += [
            f"{name:<12} {line}" if at == 0 else f"{'':<12} {line}"
            for at, line in enumerate(text.splitlines())
        ]
    if failure.transcript:
        parts += ["transcript", *(f"  {line}" for line in failure.transcript.splitlines())]
    return "\n".join([*parts, f"reproduce    {failure.reproduce}"])


def _shape(report: pytest.TestReport, result: Result, error: BaseException | None) -> None:
    """Make pytest's own report say what the verdict says, so that its exit code is right."""
    if isinstance(error, NotApplicable):
        report.outcome = "skipped"
        path, line, _ = report.location
        report.longrepr = (path, (line or 0) + 1, f"not applicable: {result.reason}")
    elif isinstance(error, Violation) and report.when == "call":
        if result.verdict is Verdict.DEVIATES:
            report.outcome = "skipped"
            setattr(report, "wasxfail", f"declared deviation: {result.reason}")  # noqa: B010  (not a declared attribute)
        else:
            report.longrepr = screen(result)
    elif error is None and report.when == "call" and result.verdict is Verdict.UNEXPECTED_PASS:
        report.outcome = "failed"
        report.longrepr = (
            f"unexpected pass: a deviation is declared for {result.reason}\n"
            "The case passes now; narrow the declaration's versions, or take it back."
        )


def result_of(report: Any) -> Result | None:
    """The result that a report carries, if it is the last one of a case."""
    data = getattr(report, ATTRIBUTE, None)
    return None if data is None else Result.from_data(data)
