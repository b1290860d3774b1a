"""The page of findings: complete, the worst first, and the committed one up to date."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from pytest_grpc_conformance.deviation import declared, read
from pytest_grpc_conformance.reports.findings import render
from pytest_grpc_conformance.requirements import catalogue

PAGE = Path(__file__).parents[2] / "docs" / "findings.md"
ROW = """
[[deviation]]
implementation = "some-server"
versions = "==1.0"
requirement = "GRPC-STATUS-01"
cases = ["grpc_status/abort[*]"]
severity = "{severity}"
reason = "It answers {severity} | late."
evidence = "Sent X, came Y."
"""


def test_committed_page_is_what_the_declarations_give() -> None:
    assert PAGE.read_text("utf-8") == render(declared(), catalogue()), "run: grpc-conformance findings --output " + str(
        PAGE
    )


def test_worst_comes_first_in_each_library() -> None:
    found = read(ROW.format(severity="cosmetic") + ROW.format(severity="hang"), "x.toml")
    page = render([*found, replace(found[0], implementation="another")], catalogue())
    assert page.index("## another") < page.index("## some-server")
    ours = page[page.index("## some-server") :]
    assert ours.index("| hang |") < ours.index("| cosmetic |")
    assert ours.count("Sent X, came Y.") == 2
    assert "### It answers hang | late." in ours


def test_a_bar_does_not_break_the_table() -> None:
    page = render(read(ROW.format(severity="hang"), "x.toml"), catalogue())
    row = next(line for line in page.splitlines() if line.startswith("| hang"))
    assert row.replace("\\|", "").count("|") == 6


def test_documented_differences_say_where() -> None:
    text = ROW.format(severity="hang") + 'documented = "README, Limits"\n'
    page = render(read(text, "x.toml"), catalogue())
    assert "| README, Limits |" in page
    assert "| no |" in render(read(ROW.format(severity="hang"), "x.toml"), catalogue())
