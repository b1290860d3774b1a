"""`grpc-conformance findings`, as a user types it."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.running import run

COMMAND = [sys.executable, "-m", "pytest_grpc_conformance.cli", "findings"]


def test_page_is_printed(tmp_path: Path) -> None:
    ran = run(COMMAND, tmp_path)
    assert ran.code == 0
    assert ran.out.startswith("# Findings\n")
    assert "## pygrpc-native" in ran.out


def test_page_is_written(tmp_path: Path) -> None:
    ran = run([*COMMAND, "--output", "findings.md"], tmp_path)
    assert (ran.code, ran.text) == (0, "")
    assert (tmp_path / "findings.md").read_text("utf-8") == run(COMMAND, tmp_path).out


def test_page_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    ran = run([*COMMAND, "--output", "no/such/folder.md"], tmp_path)
    assert ran.code == 4
    assert ran.lines == ["grpc-conformance: cannot write no/such/folder.md: No such file or directory"]
