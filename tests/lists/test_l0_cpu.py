"""Every case file is on the CPU list, once, and the list names nothing else."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_cpu_list_names_each_case_file_once() -> None:
    listed = re.findall(r"^  - (cases/\S+)$", (ROOT / "test_lists" / "l0_cpu.yml").read_text("utf-8"), re.MULTILINE)
    assert listed == sorted(f"cases/{path.name}" for path in (ROOT / "cases").glob("test_*.py"))
