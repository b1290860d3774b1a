"""From pytest's phases to verdicts: what each phase said, the verdict once all are in, and the screen for a failure."""

from __future__ import annotations

import importlib.resources
import os
import shlex
import textwrap
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_grpc_conformance import deviation
from pytest_grpc_conformance.collection import Case
from pytest_grpc_conformance.flags import DEFAULT_TIMEOUT
from pytest_grpc_conformance.reports.document import Failure, Result
from pytest_grpc_conformance.session import Run
from pytest_grpc_conformance.shared import CASES
from pytest_grpc_conformance.targets.base import NotApplicable, TargetBroken
from pytest_grpc_conformance.transcript import Transcript, harmless
from pytest_grpc_conformance.verdict import Outcome, Phases, Verdict, Violation, judge

TRANSCRIPT = pytest.StashKey[Transcript]()
"""Where the target fixture leaves the transcript of an item."""
PHASES = pytest.StashKey[dict[str, Outcome]]()
FIRST_RESULT = pytest.StashKey[Result]()
LONGEST_LINE = 400
ATTRIBUTE = "grpc_conformance"
"""The name under which a test report carries a result from a worker to the controller."""


def observe(item: pytest.Item, case: Case, call: pytest.CallInfo[None], report: pytest.TestReport, run: Run) -> None:
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
    _make_carriable(report)
    if report.when == "teardown":
        final = replace(item.stash[FIRST_RESULT], verdict=_verdict(item, case, run), seconds=_seconds(item, report))
        report.user_properties.append(("verdict", final.verdict.value))
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
    return deviation.find(deviation.declared(), target, run.version_of(target), case.requirements, case.case_id)


def _verdict(item: pytest.Item, case: Case, run: Run) -> Verdict:
    phases = item.stash[PHASES]
    return judge(
        Phases(phases.get("setup"), phases.get("call"), phases.get("teardown")),
        deviation_declared=_deviation(item, case, run) is not None,
    )


def _result(item: pytest.Item, case: Case, error: BaseException | None, report: pytest.TestReport, run: Run) -> Result:
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
        _failure(item, case, error, run) if verdict in (Verdict.FAILED, Verdict.DEVIATES, Verdict.BROKEN) else None,
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
        return Failure(_clean(error.problem), _clean(error.expected), _clean(observed), tail, again)
    return Failure(_clean(f"{type(error).__name__}: {error}") if error else "", transcript=tail, reproduce=again)


def _clean(text: str) -> str:
    """Each line without what a terminal, a worker's channel or a file could choke on; the server may have sent it."""
    return "\n".join(harmless(line, LONGEST_LINE) for line in text.splitlines())


def reproduce(item: pytest.Item, case: Case, run: Run) -> str:
    """A command line that runs this case alone on this target."""
    options = run.options
    words = _alone(item)
    ways = (("--grpc-target", options.target), ("--grpc-command", options.command), ("--grpc-address", options.address))
    for name, value in ways:
        if value is not None:
            words += [name, value, "--grpc-protocol", case.choice.protocol]
    if options.timeout != DEFAULT_TIMEOUT:
        words += ["--grpc-timeout-scale", f"{options.timeout / DEFAULT_TIMEOUT:g}"]
    return shlex.join(words)


def _alone(item: pytest.Item) -> list[str]:
    """The command that selects one item: by the name of its module if the suite ships it, else by its path."""
    _, _, rest = item.nodeid.partition("::")
    folder = Path(str(importlib.resources.files(CASES)))
    if not item.path.is_relative_to(folder):
        return ["pytest", f"{os.path.relpath(item.path, item.config.invocation_params.dir)}::{rest}"]
    module = ".".join((CASES, *item.path.relative_to(folder).with_suffix("").parts))
    ours = str(importlib.resources.files("pytest_grpc_conformance") / "conformance.ini")
    start = ["grpc-conformance", "run"] if str(item.config.inipath) == ours else ["pytest", "--pyargs"]
    return [*start, f"{module}::{rest}"]


WIDTH = 160
LABEL = 13
MOST_ROWS = 3


def screen(result: Result) -> str:
    """A failure on one screen: requirement, expected, observed, the transcript's tail, how to reproduce."""
    from pytest_grpc_conformance.requirements import catalogue

    failure = result.failure or Failure("")
    rows = [catalogue().get(row) for row in result.requirements]
    lines = [*_lines("", failure.problem, 2), ""]
    for row in rows[:MOST_ROWS]:
        lines += _folded("requirement", f"{row.id} ({row.level}, {row.oracle}): {row.statement}", 2)
        lines += _folded("", row.source, 1)
    if len(rows) > MOST_ROWS:
        lines += _lines("", f"and {', '.join(row.id for row in rows[MOST_ROWS:])}", 1)
    lines += _lines("expected", failure.expected, 3)
    lines += _lines("observed", failure.observed, 5)
    if failure.transcript:
        lines += ["transcript", *(harmless(f"  {line}", WIDTH) for line in failure.transcript.splitlines())]
    # What is to be copied into a shell is never cut; it goes on after a backslash.
    command = " \\\n".join(_together(failure.reproduce, WIDTH - LABEL))
    return "\n".join([*lines, f"{'reproduce':<{LABEL}}{command}"])


def _lines(label: str, text: str, most: int) -> list[str]:
    """A text under a label, its first lines, each cut to the width."""
    margin = LABEL if label else 0
    lines = text.splitlines()
    shown = [*lines[: most - 1], f"... and {len(lines) - most + 1} more lines"] if len(lines) > most else lines
    return [harmless(f"{label if at == 0 else '':<{margin}}{line}", WIDTH) for at, line in enumerate(shown)]


def _folded(label: str, text: str, most: int) -> list[str]:
    """A sentence under a label, wrapped to the width."""
    margin = " " * LABEL
    return textwrap.wrap(
        text,
        WIDTH - 20,
        initial_indent=f"{label:<{LABEL}}",
        subsequent_indent=margin,
        max_lines=most,
        placeholder=" ...",
    )


def _together(command: str, width: int) -> list[str]:
    """A command line, broken between words."""
    lines: list[str] = []
    for word in map(shlex.quote, shlex.split(command)):
        if lines and len(lines[-1]) + 1 + len(word) <= width:
            lines[-1] += f" {word}"
        else:
            lines.append(word)
    return lines


def _shape(report: pytest.TestReport, result: Result, error: BaseException | None) -> None:
    """Make pytest's own report say what the verdict says, so that its exit code is right."""
    if isinstance(error, TargetBroken):
        report.longrepr = _clean(str(error))  # Where in the harness that was noticed helps nobody.
    elif isinstance(error, NotApplicable):
        report.outcome = "skipped"
        path, line, _ = report.location
        report.longrepr = (path, (line or 0) + 1, f"not applicable: {result.reason}")
    elif isinstance(error, Violation) and report.when == "call":
        if result.verdict is Verdict.DEVIATES:
            report.outcome = "skipped"
            setattr(report, "wasxfail", f"declared deviation: {result.reason}")  # noqa: B010  (not a declared attribute)
        else:
            report.longrepr = screen(result)
    elif getattr(error, "tells_all", False):
        # Its message says what is wrong and what to do; a traceback through our code would only hide it.
        report.longrepr = _clean(f"{type(error).__name__}: {error}")
    elif error is None and report.when == "call" and result.verdict is Verdict.UNEXPECTED_PASS:
        report.outcome = "failed"
        report.longrepr = (
            f"unexpected pass: a deviation is declared for {result.reason}\n"
            "The case passes now; narrow the declaration's versions, or take it back."
        )


_LAYOUT = str.maketrans("", "", "\n\t")


def _make_carriable(report: pytest.TestReport) -> None:
    """Leave nothing in a report that a terminal obeys, or that cannot cross to the controller or go to a file.

    A server may have sent it, in a status that a traceback shows, or in what it logged.
    """
    report.sections = [(_printable(name), _printable(content)) for name, content in report.sections]
    if report.longrepr is not None and not isinstance(report.longrepr, tuple):
        text = str(report.longrepr)
        if _printable(text) != text:
            report.longrepr = _printable(text)


def _printable(text: str) -> str:
    if text.translate(_LAYOUT).isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode() for c in text)


def result_of(report: Any) -> Result | None:
    """The result that a report carries, if it is the last one of a case."""
    data = getattr(report, ATTRIBUTE, None)
    return None if data is None else Result.from_data(data)
