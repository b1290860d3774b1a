"""The README's code is the example's, the example passes, and the options it lists are the options there are."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

from pytest_grpc_conformance import flags

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "test_own_servicer.py"


def test_readme_code_is_the_examples() -> None:
    blocks = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert blocks
    for block in blocks:
        for part in filter(None, map(str.strip, block.split("\n\n\n"))):
            assert part in EXAMPLE.read_text("utf-8")


def test_example_passes_on_every_library() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:pytest_grpc", str(EXAMPLE)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout
    assert "4 passed" in done.stdout


class _Parser:
    """Stands for pytest's parser and keeps the names of the options."""

    def __init__(self) -> None:
        self.names: set[str] = set()

    def getgroup(self, name: str, description: str) -> _Parser:
        return self

    def addoption(self, name: str, **settings: object) -> None:
        self.names.add(name)


def test_readme_lists_every_option() -> None:
    parser = _Parser()
    flags.add_to_parser(parser)  # type: ignore[arg-type]
    listed = set(re.findall(r"^\| `(--[a-z-]+)", README, flags=re.MULTILINE))
    assert listed == parser.names


def test_readme_names_only_commands_that_exist() -> None:
    from pytest_grpc_conformance.cli import _parser

    (commands,) = (a for a in _parser()._actions if isinstance(a, argparse._SubParsersAction))
    named = set(re.findall(r"grpc-conformance ([a-z]+)\b", README)) - {"run"}
    assert named <= set(commands.choices)
    assert {"serve", "requirements"} <= named
