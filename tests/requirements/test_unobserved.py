"""A row that no test can observe: listed with its reason, counted on its own, and named by no case."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from toy_rows import row_toml, written

from pytest_grpc_conformance.requirements import Catalogue, UnobservedRequirement, catalogue, load
from pytest_grpc_conformance.requirements.coverage import CaseRef, State, cover, render_json, render_text
from tests.running import Ran, project, run, run_pytest

REASON = "The server does it where no client can look."
# The commands and the plugin know the shipped protocols only, so the rows are ones of every gRPC server.
GROUP = '[[group]]\nid = "GRPC-TOY"\ntitle = "Toy things"\n'
ROWS = GROUP + row_toml(id='"GRPC-TOY-01"', unobserved=f'"{REASON}"') + row_toml(id='"GRPC-TOY-02"', level='"SHOULD"')

WITH_TOY_ROWS = """
import dataclasses, pathlib
from pytest_grpc_conformance import requirements

shipped = requirements.catalogue()
toy = requirements.load(pathlib.Path(__file__).parent / "rows")
both = dataclasses.replace(shipped, groups=shipped.groups + toy.groups, rows=shipped.rows + toy.rows)
requirements.catalogue = lambda: both
"""
"""A module that adds the toy rows to the shipped ones in the process that imports it."""


@pytest.fixture
def toy(tmp_path: Path) -> Catalogue:
    """An unobserved MUST row and a SHOULD row that a case can name."""
    folder = tmp_path / "rows"
    folder.mkdir()
    return load(written(folder, toy=ROWS))


def listed(folder: Path, *arguments: str) -> Ran:
    """``grpc-conformance requirements`` in a process that has the toy rows too."""
    project(folder, with_toy_rows=WITH_TOY_ROWS)
    program = "import sys, with_toy_rows; from pytest_grpc_conformance.cli import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", program, "requirements", *arguments]
    return run(command, folder, {"PYTEST_PLUGINS": "pytest_grpc_conformance.plugin"})


class TestCoverage:
    """The row in the join and in its views."""

    def test_row_is_not_counted_as_unchecked(self, toy: Catalogue) -> None:
        coverage = cover(toy, ())
        assert [entry.state for entry in coverage] == ["unobserved", "unchecked"]
        assert json.loads(render_json(coverage))["counts"] == {
            "rows": 2,
            "checked": 0,
            "unchecked": {"MUST": 0, "SHOULD": 1, "MAY": 0, "REF": 0},
            "unobserved": 1,
        }

    def test_text_has_the_reason(self, toy: Catalogue) -> None:
        case = CaseRef("toy/answers", ("GRPC-TOY-02",), "The server SHOULD answer.")
        assert render_text(cover(toy, [case]), width=20).splitlines() == [
            "GRPC-TOY  Toy things",
            f"  GRPC-TOY-01  MUST    spec       The server answers.   unobserved: {REASON}",
            "  GRPC-TOY-02  SHOULD  spec       The server answers.   toy/answers",
            "",
            "2 rows: 1 checked, 0 unchecked, 1 unobserved",
        ]

    @pytest.mark.parametrize(("only", "row"), [("unobserved", "GRPC-TOY-01"), ("unchecked", "GRPC-TOY-02")])
    def test_text_of_one_state_counts_all(self, toy: Catalogue, only: State, row: str) -> None:
        lines = render_text(cover(toy, ()), only=only).splitlines()
        assert [line.split()[0] for line in lines if line.startswith("  ")] == [row]
        assert lines[-1] == "2 rows: 0 checked, 1 unchecked (1 SHOULD), 1 unobserved"

    def test_case_that_names_it_is_refused(self, toy: Catalogue) -> None:
        case = CaseRef("toy/thinks", ("GRPC-TOY-01",), "")
        with pytest.raises(UnobservedRequirement) as caught:
            cover(toy, [case])
        told = f"case toy/thinks: requirement 'GRPC-TOY-01' is unobserved, no case can check it: {REASON}"
        assert str(caught.value) == told


@pytest.mark.usefixtures("toy")
class TestCommand:
    """The row in what ``grpc-conformance requirements`` prints."""

    def test_unobserved_rows_are_listed_with_their_reason(self, tmp_path: Path) -> None:
        told = listed(tmp_path, "--unobserved")
        assert (told.code, told.err) == (0, "")
        lines = told.out.splitlines()
        assert next(line for line in lines if "GRPC-TOY-01 " in line).endswith(f"  unobserved: {REASON}")
        assert "GRPC-TOY-02" not in told.out
        shipped = catalogue().rows
        unobserved = 1 + sum(row.unobserved is not None for row in shipped)
        assert lines[-1].startswith(f"{len(shipped) + 2} rows: ")
        assert lines[-1].endswith(f", {unobserved} unobserved")

    def test_they_are_not_listed_as_unchecked(self, tmp_path: Path) -> None:
        told = listed(tmp_path, "--unchecked")
        assert told.code == 0
        assert "GRPC-TOY-01" not in told.out
        assert "GRPC-TOY-02" in told.out

    def test_json_has_the_reason_and_the_count(self, tmp_path: Path) -> None:
        document = json.loads(listed(tmp_path, "--json").out)
        rows = {row["id"]: row for group in document["groups"] for row in group["rows"]}
        assert (rows["GRPC-TOY-01"]["unobserved"], rows["GRPC-TOY-02"]["unobserved"]) == (REASON, None)
        counts = document["counts"]
        assert counts["checked"] + sum(counts["unchecked"].values()) + counts["unobserved"] == len(rows)

    def test_one_state_is_listed_at_a_time(self, tmp_path: Path) -> None:
        told = listed(tmp_path, "--unchecked", "--unobserved")
        assert (told.code, told.out) == (4, "")
        assert told.err.endswith("requirements: argument --unobserved: not allowed with argument --unchecked\n")
        assert len(told.err.splitlines()) == 1


@pytest.mark.usefixtures("toy")
@pytest.mark.parametrize("more", [(), ("-n", "1")], ids=["one-process", "xdist"])
def test_case_that_names_an_unobserved_row_fails_collection(tmp_path: Path, more: tuple[str, ...]) -> None:
    case = """
from pytest_grpc_conformance.marker import requirement

@requirement("GRPC-TOY-02", "GRPC-TOY-01")
def test_case(grpc_target):
    pass
"""
    project(tmp_path, with_toy_rows=WITH_TOY_ROWS, conftest="import with_toy_rows", test_mine=case)
    result = run_pytest(tmp_path, *more, plugins=("grpc_conformance", "xdist"))
    assert result.code != 0
    told = f"test_case: requirement 'GRPC-TOY-01' is unobserved, no case can check it: {REASON}"
    assert told in [line.removeprefix("E").strip() for line in result.lines]
    assert "Traceback" not in result.text
    assert "collection.py" not in result.out
