"""``--grpc-report``: the same document with and without workers, in any order, and never missing in silence."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_grpc_conformance import __version__
from pytest_grpc_conformance.reports.document import Document, Failure, Result, ordered
from pytest_grpc_conformance.verdict import Verdict
from tests.running import project, report, run_pytest

CASES = """
import pytest
from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.base import NotApplicable

rows = requirement("OE-GEN-018", "SMG-GEN-016")

@rows
@pytest.mark.parametrize("number", [3, 20, 100], ids=lambda n: f"n={n}")
def test_passes(grpc_target, number):
    \"\"\"The server MUST pass
    in one sentence.

    And more.
    \"\"\"

@rows
def test_fails(grpc_target):
    \"\"\"The server MUST be right.\"\"\"
    asserts.violation("it differs", "one", "two", evidence="three\\nfour")

@rows
def test_not_applicable(grpc_target):
    raise NotApplicable("a-code", "for a reason")

@rows
def test_breaks(grpc_target):
    raise ValueError("oops")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return project(tmp_path_factory.mktemp("reports"), test_mine=CASES)


def run(folder: Path, name: str, *arguments: str, plugins: tuple[str, ...] = ()) -> dict[str, Any]:
    result = run_pytest(folder, "--grpc-report", name, *arguments, plugins=("grpc_conformance", *plugins))
    assert result.code == 1
    return report(folder / name)


@pytest.fixture(scope="module")
def plain(folder: Path) -> dict[str, Any]:
    return run(folder, "plain.json")


def test_document_has_its_schema_and_its_targets(plain: dict[str, Any]) -> None:
    from importlib.metadata import version

    assert list(plain) == ["schema", "suite_version", "targets", "results", "notes"]
    assert plain["schema"] == 1
    assert plain["suite_version"] == __version__
    assert plain["targets"] == [{"name": name, "version": version(name)} for name in ("grpcio", "pygrpc-native")]
    assert plain["notes"] == []


def test_every_result_is_complete(plain: dict[str, Any]) -> None:
    assert len(plain["results"]) == 6 * 4
    results = {(entry["target"], entry["protocol"], entry["case_id"]): entry for entry in plain["results"]}
    assert len(results) == 24
    passed = dict(results["grpcio", "smg", "mine/passes[smg-n=20]"])
    assert 0 < passed.pop("seconds") < 30
    assert passed == {
        "case_id": "mine/passes[smg-n=20]",
        "target": "grpcio",
        "protocol": "smg",
        "requirements": ["SMG-GEN-016"],
        "summary": "The server MUST pass in one sentence.",
        "verdict": "passed",
        "reason": "",
        "failure": None,
    }
    failed = results["pygrpc-native", "openengine", "mine/fails[openengine]"]
    assert failed["verdict"] == "failed"
    assert failed["summary"] == "The server MUST be right."
    assert {name: failed["failure"][name] for name in ("problem", "expected", "observed", "reproduce")} == {
        "problem": "it differs",
        "expected": "one",
        "observed": "two\nthree\nfour",
        "reproduce": "pytest 'test_mine.py::test_fails[pygrpc-native-openengine]'",
    }
    assert "pygrpc-native listens on 127.0.0.1:" in failed["failure"]["transcript"]
    not_applicable = results["grpcio", "smg", "mine/not_applicable[smg]"]
    assert (not_applicable["verdict"], not_applicable["reason"]) == ("not applicable", "for a reason [a-code]")
    assert not_applicable["failure"] is None
    broken = results["grpcio", "smg", "mine/breaks[smg]"]
    assert (broken["verdict"], broken["reason"]) == ("broken", "ValueError: oops")


@pytest.mark.parametrize(
    ("plugins", "arguments"),
    [
        pytest.param(("xdist",), ("-n", "2"), id="xdist"),
        pytest.param(("randomly",), ("-p", "randomly", "-p", "no:xdist"), id="randomly"),
    ],
)
def test_report_is_the_same_with_workers_and_in_any_order(
    folder: Path, plain: dict[str, Any], plugins: tuple[str, ...], arguments: tuple[str, ...]
) -> None:
    other = run(folder, "other.json", *arguments, plugins=plugins)
    assert without_times(other) == without_times(plain)
    assert not [name for name in os.listdir(folder) if "gw" in name], "workers write nothing by themselves"


def without_times(document: dict[str, Any]) -> dict[str, Any]:
    """Without seconds, and without a transcript's milliseconds and ports."""
    document = json.loads(json.dumps(document))
    for entry in document["results"]:
        assert entry.pop("seconds") >= 0
        if entry["failure"] is not None:
            lines = entry["failure"].pop("transcript").splitlines()
            entry["events"] = [line.partition(" ms ")[2].rpartition(":")[0] for line in lines]
    return document


@pytest.mark.parametrize("arguments", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_report_that_cannot_be_written_fails_a_green_run_and_hides_nothing(
    folder: Path, arguments: tuple[str, ...]
) -> None:
    chosen = ("-k", "passes", "--grpc-report", "/dev/full")
    result = run_pytest(folder, *chosen, *arguments, plugins=("grpc_conformance", "xdist"))
    assert result.code == 1
    assert "cannot write --grpc-report /dev/full: No space left on device" in result.out
    assert "12 results: 12 passed" in result.out
    assert "Traceback" not in result.text


def test_report_in_a_folder_that_is_not_there_is_refused_before_the_run(folder: Path) -> None:
    result = run_pytest(folder, "--grpc-report", "missing/report.json")
    assert result.code == 4
    assert "--grpc-report missing/report.json: the folder missing does not exist" in result.text
    assert "passed" not in result.text
    assert "Traceback" not in result.text


def test_run_without_a_case_writes_an_empty_report(folder: Path) -> None:
    result = run_pytest(folder, "-k", "nothing", "--grpc-report", "empty.json")
    assert result.code == 5
    assert report(folder / "empty.json")["results"] == []


EVERYTHING = Result(
    "a/b[smg-k=1]", "grpcio", "smg", ("SMG-1", "SMG-2"), "It MUST.", Verdict.FAILED, 0.25, "why", Failure(*"peotr")
)


def test_result_survives_the_way_through_plain_data() -> None:
    for result in (EVERYTHING, Result("a/b", "t", "p", (), "", Verdict.NOT_APPLICABLE, 0.0)):
        assert Result.from_data(json.loads(json.dumps(result.to_data()))) == result


def test_order_does_not_depend_on_the_order_of_the_run() -> None:
    results = [
        Result(case_id, target, protocol, (), "", Verdict.PASSED, 0.0)
        for case_id in ("b/a", "a/b")
        for protocol in ("smg", "openengine")
        for target in ("b", "a")
    ]
    assert ordered(results) == ordered(reversed(results))
    assert [result.target for result in ordered(results)] == ["a"] * 4 + ["b"] * 4


def test_document_counts_by_verdict() -> None:
    document = Document("1", (), (EVERYTHING, EVERYTHING))
    assert document.count(Verdict.FAILED) == 2
    assert document.count(Verdict.PASSED) == 0
    assert EVERYTHING.area == "a"
