"""Declared deviations: their files, what they cover, and that they are strict."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_grpc_conformance import deviation
from pytest_grpc_conformance.deviation import BrokenDeviation, read
from tests.running import project, report, run_pytest

DECLARED = """
[[deviation]]
implementation = "grpcio"
versions = ">=1.80,<1.90"
requirement = "OE-GEN-018"
cases = ["mine/fails[openengine]", "mine/each_*[*-k=2*]"]
severity = "wrong status"
reason = "It does something else."
evidence = "Seen."
"""


def changed(old: str, new: str) -> str:
    assert old in DECLARED
    return DECLARED.replace(old, new)


@pytest.mark.parametrize(
    ("implementation", "version", "rows", "case_id", "covered"),
    [
        ("grpcio", "1.80", ["OE-GEN-018"], "mine/fails[openengine]", True),
        ("grpcio", "1.89.9", ["GRPC-SVC-11", "OE-GEN-018"], "mine/fails[openengine]", True),
        ("grpcio", "1.86.0rc1", ["OE-GEN-018"], "mine/fails[openengine]", True),
        ("grpcio", "1.85", ["OE-GEN-018"], "mine/each_token[openengine-k=20]", True),
        ("pygrpc-native", "1.85", ["OE-GEN-018"], "mine/fails[openengine]", False),
        ("grpcio", "1.79", ["OE-GEN-018"], "mine/fails[openengine]", False),
        ("grpcio", "1.90", ["OE-GEN-018"], "mine/fails[openengine]", False),
        ("grpcio", None, ["OE-GEN-018"], "mine/fails[openengine]", False),
        ("grpcio", "1.85", ["OE-GEN-019"], "mine/fails[openengine]", False),
        ("grpcio", "1.85", [], "mine/fails[openengine]", False),
        ("grpcio", "1.85", ["OE-GEN-018"], "mine/fails[smg]", False),
        ("grpcio", "1.85", ["OE-GEN-018"], "mine/fails_too[openengine]", False),
        ("grpcio", "1.85", ["OE-GEN-018"], "mine/failso", False),
        ("grpcio", "1.85", ["OE-GEN-018"], "other/fails[openengine]", False),
        ("grpcio", "1.85", ["OE-GEN-018"], "mine/each_token[openengine-k=5]", False),
        ("grpcio", "1.85", ["OE-GEN-018"], "mine/each_/token[openengine-k=2]", False),
    ],
)
def test_coverage(implementation: str, version: str | None, rows: list[str], case_id: str, covered: bool) -> None:
    found = deviation.find(read(DECLARED, "here"), implementation, version, rows, case_id)
    assert (found is not None) is covered


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        pytest.param("deviation = [", "broken.toml: not valid TOML", id="syntax"),
        pytest.param("deviation = 3", "broken.toml: only [[deviation]] tables", id="number"),
        pytest.param("[deviation]\nimplementation = 'x'", "only [[deviation]] tables", id="one-table"),
        pytest.param(changed("[[deviation]]", "[[deviations]]"), "only [[deviation]] tables", id="wrong-name"),
        pytest.param(changed('reason = "It does something else."\n', ""), "deviation 1 lacks reason", id="missing"),
        pytest.param(DECLARED + 'mood = "bad"\n', "deviation 1 has unknown mood", id="unknown"),
        pytest.param(
            DECLARED + changed("wrong status", "odd"), "deviation 2: severity 'odd' is not one of", id="severity"
        ),
        pytest.param(
            changed(">=1.80,<1.90", "about 1.80"), "versions 'about 1.80' is not a version range", id="versions"
        ),
        pytest.param(changed('"grpcio"', "5"), "implementation is not a text", id="type"),
        pytest.param(DECLARED + "link = 5\n", "link is not a text", id="link"),
        pytest.param(
            changed('["mine/fails[openengine]", "mine/each_*[*-k=2*]"]', '"mine/*"'),
            "cases is not a list",
            id="one-pattern",
        ),
        pytest.param(
            changed('["mine/fails[openengine]", "mine/each_*[*-k=2*]"]', "[]"), "cases is not a list", id="no-pattern"
        ),
    ],
)
def test_broken_declaration_says_where_and_what(text: str, problem: str) -> None:
    with pytest.raises(BrokenDeviation) as caught:
        read(text, "broken.toml")
    assert str(caught.value).startswith("broken.toml")
    assert problem in str(caught.value)


def test_shipped_declarations_name_rows_and_cases_that_exist() -> None:
    from pytest_grpc_conformance.case_listing import list_cases
    from pytest_grpc_conformance.cli import CASES, ini_file
    from pytest_grpc_conformance.requirements import catalogue

    declared = deviation.declared()
    cases = list_cases(ini_file(), CASES) if declared else ()
    for row in declared:
        catalogue().get(row.requirement)
        for pattern in row.cases:
            checking = [case for case in cases if row.requirement in case.requirement_ids]
            assert any(deviation._matches(case.case_id, pattern) for case in checking), (row.requirement, pattern)


CASES_FILE = """
import pytest
from pytest_grpc_conformance import asserts
from pytest_grpc_conformance.marker import requirement

@requirement("OE-GEN-018")
def test_fails(grpc_target):
    asserts.equal("the number", 1, 2)

@requirement("OE-GEN-018")
def test_passes(grpc_target):
    pass

@requirement("OE-GEN-018")
def test_breaks(grpc_target):
    raise ValueError("oops")

@pytest.fixture
def broken():
    raise ValueError("at set-up")

@pytest.fixture
def violating(grpc_target):
    asserts.equal("the number at set-up", 1, 2)

@pytest.fixture
def broken_after(grpc_target):
    yield
    raise ValueError("at tear-down")

@requirement("OE-GEN-018")
def test_set_up(grpc_target, broken):
    pass

@requirement("OE-GEN-018")
def test_violation_at_set_up(grpc_target, violating):
    pass

@requirement("OE-GEN-018")
def test_tear_down(grpc_target, broken_after):
    asserts.equal("the number", 1, 2)
"""
CONFTEST = f"""
from pytest_grpc_conformance import deviation

ROWS = deviation.read('''{changed('["mine/fails[openengine]", "mine/each_*[*-k=2*]"]', '["mine/*"]')}''', "conftest")
deviation.declared = lambda: ROWS
"""


def run(folder: Path, *arguments: str) -> tuple[int, str, dict[str, dict[str, str]]]:
    project(folder, test_mine=CASES_FILE, conftest=CONFTEST)
    chosen = ("--grpc-server", "grpcio", "--grpc-protocol", "openengine", "--grpc-report", "report.json")
    result = run_pytest(folder, "-rA", *chosen, *arguments, plugins=("grpc_conformance", "xdist"))
    results = report(folder / "report.json")["results"]
    return result.code, result.out, {entry["case_id"].partition("[")[0]: entry for entry in results}


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_case_that_fails_as_declared_deviates_and_the_run_is_green(tmp_path: Path, workers: tuple[str, ...]) -> None:
    code, out, results = run(tmp_path, "-k", "test_fails", *workers)
    assert code == 0
    assert results["mine/fails"]["verdict"] == "deviates"
    assert results["mine/fails"]["reason"] == "OE-GEN-018: It does something else."
    assert "1 xfailed" in out
    assert "deviates  grpcio/openengine mine/fails[openengine] (OE-GEN-018): OE-GEN-018: It does something else." in out
    assert "1 result: 1 deviates" in out


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "xdist"])
def test_case_that_passes_against_its_declaration_fails_the_run(tmp_path: Path, workers: tuple[str, ...]) -> None:
    code, out, results = run(tmp_path, "-k", "test_passes", *workers)
    assert code == 1
    assert results["mine/passes"]["verdict"] == "unexpected pass"
    assert "unexpected pass: a deviation is declared for OE-GEN-018: It does something else." in out
    assert "UNEXPECTED PASS  grpcio/openengine mine/passes[openengine]" in out
    assert "1 failed" in out


def test_nothing_but_a_violation_of_the_case_is_excused(tmp_path: Path) -> None:
    code, out, results = run(tmp_path, "-k", "breaks or set_up or tear_down")
    assert code == 1
    assert {name: entry["verdict"] for name, entry in results.items()} == {
        "mine/breaks": "broken",
        "mine/set_up": "broken",
        "mine/violation_at_set_up": "broken",
        "mine/tear_down": "broken",
    }
    assert "4 results: 4 broken" in out
    assert results["mine/set_up"]["reason"] == "ValueError: at set-up"
