"""Conformance cases as items of pytest: their ids, their rows, and what counts as a failure of the target."""

from __future__ import annotations

import re
import shutil
import xml.etree.ElementTree
from pathlib import Path

import pytest

from tests.running import project, report, run_cli, run_pytest

ROOT = Path(__file__).resolve().parents[2]
CHOSEN = ("-k", "test_first_token.py", "--grpc-server", "grpcio", "--junitxml", "junit.xml")
PACKAGE = ("--pyargs", "pytest_grpc_conformance.cases")
COMMAND_PLUGINS = {"PYTEST_PLUGINS": "pytest_grpc_conformance.plugin"}


def properties(path: Path) -> list[dict[str, str]]:
    """The properties of each test case in a JUnit report."""
    cases = xml.etree.ElementTree.parse(path).iter("testcase")
    return [{p.attrib["name"]: p.attrib["value"] for p in case.iter("property")} for case in cases]


@pytest.fixture(scope="module")
def wheel_like(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages laid out as in a wheel, before the editable install on the path."""
    site = tmp_path_factory.mktemp("site")
    skip = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "pytest_grpc_conformance", site / "pytest_grpc_conformance", ignore=skip)
    for folder in ("cases", "fixtures", "test_lists"):
        shutil.copytree(ROOT / folder, site / "pytest_grpc_conformance" / folder, ignore=skip)
    return site


@pytest.fixture(scope="module")
def by_name(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, str]]:
    """What JUnit says of the cases when pytest finds them by the name of the package."""
    folder = tmp_path_factory.mktemp("by_name")
    run_pytest(folder, *CHOSEN, *PACKAGE)
    return properties(folder / "junit.xml")


def test_case_id_is_file_and_function_and_parameters(by_name: list[dict[str, str]]) -> None:
    ids = [entry["case_id"] for entry in by_name]
    assert len(set(ids)) == len(ids)
    assert {
        f"first_token/first_token_arrives_while_the_second_is_held[{name}]" for name in ("openengine", "smg")
    } <= set(ids)
    pattern = r"first_token/[a-z0-9_]+\[(openengine|smg)(-[a-z0-9-]+(=[a-z0-9.-]+)?)*\]"
    assert not [case_id for case_id in ids if not re.fullmatch(pattern, case_id)]
    assert {"verdict", "requirements", "case_id"} == set().union(*by_name)
    for entry in by_name:
        prefix = "OE-" if "[openengine" in entry["case_id"] else "SMG-"
        assert all(row.startswith((prefix, "GRPC-")) for row in entry["requirements"].split())


@pytest.mark.parametrize("way", ["path", "command", "wheel", "xdist"])
def test_case_ids_and_rows_are_the_same_however_the_cases_are_found(
    tmp_path: Path, by_name: list[dict[str, str]], wheel_like: Path, way: str
) -> None:
    if way == "command":
        run_cli(tmp_path, "run", *CHOSEN, "-p", "no:cacheprovider", changes=COMMAND_PLUGINS)
    elif way == "path":
        # The checkout's own configuration holds a key of pytest-asyncio's.
        run_pytest(tmp_path, *CHOSEN, str(ROOT / "cases"), plugins=("grpc_conformance", "asyncio"))
    elif way == "wheel":
        run_pytest(tmp_path, *CHOSEN, *PACKAGE, changes={"PYTHONPATH": str(wheel_like)})
    else:
        run_pytest(tmp_path, *CHOSEN, *PACKAGE, "-n", "2", plugins=("grpc_conformance", "xdist"))
    found = properties(tmp_path / "junit.xml")
    assert sorted(e["case_id"] + " " + e["requirements"] for e in found) == sorted(
        e["case_id"] + " " + e["requirements"] for e in by_name
    )


def test_unknown_row_fails_collection_with_the_nearest_ids(tmp_path: Path) -> None:
    case = """
from pytest_grpc_conformance.marker import requirement

@requirement("OE-GEN-018", "OE-GEM-018")
def test_case(grpc_target):
    pass
"""
    project(tmp_path, test_mine=case)
    for more in ((), ("-n", "1")):
        result = run_pytest(tmp_path, *more, plugins=("grpc_conformance", "xdist"))
        assert result.code != 0
        assert "no requirement 'OE-GEM-018'; nearest: OE-GEN-018" in result.out
        assert "test_case: " in result.out
        assert "Traceback" not in result.text
        assert "collection.py" not in result.out


def test_case_gets_the_rows_and_the_targets_of_the_protocols_that_it_serves(tmp_path: Path) -> None:
    case = """
from pytest_grpc_conformance.marker import requirement

@requirement("OE-GEN-018", "OE-GEN-001", "GRPC-STATUS-01")
def test_openengine_only(grpc_target):
    pass

@requirement("GRPC-STATUS-01")
def test_every_protocol(grpc_target):
    pass

def test_no_case(grpc_target):
    pass
"""
    project(tmp_path, test_mine=case)
    result = run_pytest(tmp_path, "-v", "--grpc-server", "grpcio", "--grpc-report", "report.json")
    assert result.results() == "6 passed"
    rows = {entry["case_id"]: entry["requirements"] for entry in report(tmp_path / "report.json")["results"]}
    assert rows == {
        "mine/openengine_only[openengine]": ["OE-GEN-018", "OE-GEN-001", "GRPC-STATUS-01"],
        "mine/openengine_only[smg]": ["GRPC-STATUS-01"],
        "mine/every_protocol[openengine]": ["GRPC-STATUS-01"],
        "mine/every_protocol[smg]": ["GRPC-STATUS-01"],
    }


def test_case_of_another_protocol_is_no_part_of_the_run(tmp_path: Path) -> None:
    case = """
from pytest_grpc_conformance.marker import requirement

@requirement("OE-GEN-018")
def test_openengine_only(grpc_target):
    pass

@requirement("SMG-GEN-016")
def test_smg_only(grpc_target):
    pass
"""
    project(tmp_path, test_mine=case)
    (tmp_path / "pytest.ini").write_text("[pytest]\nempty_parameter_set_mark = fail_at_collect\n")
    result = run_pytest(tmp_path, "--grpc-server", "grpcio", "--grpc-protocol", "smg")
    assert result.code == 0, result.text
    assert result.results() == "1 passed, 1 deselected"
    assert "1 result: 1 passed" in result.out


BROKEN = """
import pytest
from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.targets.base import NotApplicable
from pytest_grpc_conformance.verdict import Violation

rows = requirement("SMG-GEN-016")

@rows
def test_violation(grpc_target):
    asserts.equal("the number", 1, 2)

@rows
def test_assertion(grpc_target):
    assert 1 == 2

@rows
def test_error(grpc_target):
    raise ValueError("oops")

@rows
def test_rpc_error(grpc_target):
    grpc_target.protocol.abort(grpc_target.client.channel, "nobody", -1)

@rows
def test_explicit_failure(grpc_target):
    pytest.fail("oops")

@rows
def test_not_applicable(grpc_target):
    raise NotApplicable("no-model", "it has no model")

@rows
def test_skip(grpc_target):
    pytest.skip("not today")

@rows
def test_misuse(grpc_target):
    grpc_target.prepare("r", None)

@pytest.fixture
def violating():
    yield
    asserts.equal("the number at tear-down", 1, 2)

@rows
def test_tear_down(grpc_target, violating):
    pass

@rows
def test_not_applicable_and_tear_down(grpc_target, violating):
    raise NotApplicable("no-model", "it has no model")

@rows
def test_passes(grpc_target):
    pass
"""


@pytest.mark.parametrize("workers", [(), ("-n", "2")], ids=["alone", "xdist"])
def test_only_a_violation_is_a_failure_of_the_target(tmp_path: Path, workers: tuple[str, ...]) -> None:
    project(tmp_path, test_mine=BROKEN)
    chosen = ("--grpc-server", "grpcio", "--grpc-protocol", "smg", "--grpc-report", "report.json")
    result = run_pytest(tmp_path, *chosen, *workers, plugins=("grpc_conformance", "xdist"))
    assert result.code == 1
    results = report(tmp_path / "report.json")["results"]
    verdicts = {entry["case_id"].removeprefix("mine/").removesuffix("[smg]"): entry["verdict"] for entry in results}
    assert verdicts == {
        "violation": "failed",
        "assertion": "broken",
        "error": "broken",
        "rpc_error": "broken",
        "explicit_failure": "broken",
        "misuse": "broken",
        "tear_down": "broken",
        "not_applicable_and_tear_down": "broken",
        "not_applicable": "not applicable",
        "skip": "not applicable",
        "passes": "passed",
    }
    reasons = {entry["case_id"]: entry["reason"] for entry in results}
    assert reasons["mine/error[smg]"] == "ValueError: oops"
    assert reasons["mine/not_applicable[smg]"] == "it has no model [no-model]"
    assert reasons["mine/skip[smg]"] == "skipped: not today"


def test_run_with_nothing_but_broken_cases_is_not_green(tmp_path: Path) -> None:
    project(tmp_path, test_mine=BROKEN)
    for name, code in (("error", 1), ("not_applicable_and_tear_down", 1), ("skip", 0)):
        chosen = ("--grpc-server", "grpcio", "--grpc-protocol", "smg", "-k", f"test_{name}")
        assert run_pytest(tmp_path, *chosen).code == code, name


def test_users_own_test_on_a_target_that_cannot_be_had_is_skipped(tmp_path: Path) -> None:
    test = "def test_mine(grpc_target):\n    pass\n"
    library = """
from pytest_grpc_conformance.servers import grpcio
grpcio.GrpcioAio.requirement = "no-such-distribution"
"""
    project(tmp_path, test_mine=test, conftest=library)
    result = run_pytest(tmp_path, "-rs", "--grpc-server", "grpcio")
    assert result.results() == "2 skipped"
    assert "not applicable: no-such-distribution is not installed; pip install 'no-such-distribution'" in result.out
