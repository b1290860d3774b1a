"""The join of rows and cases, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_rows import GROUP, row_toml, written

from pytest_grpc_conformance.requirements import Catalogue, UnknownRequirement, catalogue, load
from pytest_grpc_conformance.requirements.coverage import CaseRef, cover, render_json, render_text


@pytest.fixture
def toy(tmp_path: Path) -> Catalogue:
    """Four rows in two groups, one of each level."""
    first = GROUP + row_toml() + row_toml(id='"XX-ONE-002"', level='"SHOULD"')
    second = '[[group]]\nid = "XX-TWO"\ntitle = "Second things"\n' + row_toml(
        id='"XX-TWO-001"', level='"MAY"', statement=f'"The server {"very " * 30}rarely answers."'
    )
    third = row_toml(id='"XX-TWO-002"', level='"REF"', oracle='"reference"')
    return load(written(tmp_path, toy=first + second + third))


CASES = (
    CaseRef("gen/answers", ("XX-ONE-001", "XX-TWO-001"), "The server MUST answer."),
    CaseRef("gen/again[greedy]", ("XX-ONE-001",), "The server MUST answer again."),
)


class TestCoverage:
    """The join of rows and cases, and its two views."""

    def test_every_row_is_kept_in_order(self, toy: Catalogue) -> None:
        assert [(entry.row.id, entry.case_ids) for entry in cover(toy, CASES)] == [
            ("XX-ONE-001", ("gen/answers", "gen/again[greedy]")),
            ("XX-ONE-002", ()),
            ("XX-TWO-001", ("gen/answers",)),
            ("XX-TWO-002", ()),
        ]

    def test_without_cases_all_shipped_rows_are_unchecked(self) -> None:
        coverage = cover(catalogue(), ())
        assert tuple(entry.row for entry in coverage) == catalogue().rows
        assert not any(entry.cases for entry in coverage)
        unobserved = sum(row.unobserved is not None for row in catalogue().rows)
        closing = render_text(coverage).splitlines()[-1]
        assert closing.startswith(f"727 rows: 0 checked, {727 - unobserved} unchecked (")

    def test_case_that_names_a_row_twice_counts_once(self, toy: Catalogue) -> None:
        case = CaseRef("gen/twice", ("XX-ONE-001", "XX-ONE-001"), "")
        assert cover(toy, [case, case])[0].case_ids == ("gen/twice",)

    def test_unknown_id_names_the_case(self, toy: Catalogue) -> None:
        case = CaseRef("gen/lost", ("XX-ONE-003",), "")
        with pytest.raises(
            UnknownRequirement, match=r"^case gen/lost: no requirement 'XX-ONE-003'; nearest: XX-ONE-00"
        ):
            cover(toy, [case])

    def test_text(self, toy: Catalogue) -> None:
        assert render_text(cover(toy, CASES), width=30).splitlines() == [
            "XX-ONE  First things",
            "  XX-ONE-001  MUST    spec       The server answers.             gen/answers, gen/again[greedy]",
            "  XX-ONE-002  SHOULD  spec       The server answers.             unchecked",
            "",
            "XX-TWO  Second things",
            "  XX-TWO-001  MAY     spec       The server very very very...    gen/answers",
            "  XX-TWO-002  REF     reference  The server answers.             unchecked",
            "",
            "4 rows: 2 checked, 2 unchecked (1 SHOULD, 1 REF)",
        ]

    def test_text_of_unchecked_rows_counts_all(self, toy: Catalogue) -> None:
        lines = render_text(cover(toy, CASES), only="unchecked").splitlines()
        assert [line.split()[0] for line in lines if line.startswith("  ")] == ["XX-ONE-002", "XX-TWO-002"]
        assert lines[-1] == "4 rows: 2 checked, 2 unchecked (1 SHOULD, 1 REF)"

    def test_text_drops_a_group_that_has_nothing_unchecked(self, toy: Catalogue) -> None:
        case = CaseRef("gen/all", tuple(row.id for row in toy.of_group("XX-ONE")), "")
        text = render_text(cover(toy, [case]), only="unchecked")
        assert "First things" not in text
        assert "Second things" in text

    def test_text_when_all_is_checked(self, toy: Catalogue) -> None:
        case = CaseRef("gen/all", tuple(row.id for row in toy.rows), "")
        assert render_text(cover(toy, [case]), only="unchecked") == "4 rows: 4 checked, 0 unchecked"

    def test_statement_is_cut_to_the_width(self, toy: Catalogue) -> None:
        long = toy.get("XX-TWO-001").statement
        assert long not in render_text(cover(toy, ()), width=40)
        assert long in render_text(cover(toy, ()), width=len(long))

    def test_json(self, toy: Catalogue) -> None:
        document = json.loads(render_json(cover(toy, CASES)))
        assert document["schema"] == 1
        assert document["counts"] == {
            "rows": 4,
            "checked": 2,
            "unchecked": {"MUST": 0, "SHOULD": 1, "MAY": 0, "REF": 1},
            "unobserved": 0,
        }
        first, second = document["groups"]
        assert (first["id"], first["title"], first["protocol"]) == ("XX-ONE", "First things", "toy")
        assert first["rows"][0] == {
            "id": "XX-ONE-001",
            "oracle": "spec",
            "level": "MUST",
            "statement": "The server answers.",
            "source": "A document, a section",
            "derived": False,
            "observe": "black box",
            "unobserved": None,
            "cases": [
                {"id": "gen/answers", "summary": "The server MUST answer."},
                {"id": "gen/again[greedy]", "summary": "The server MUST answer again."},
            ],
        }
        assert [row["cases"] for row in second["rows"]][1] == []
