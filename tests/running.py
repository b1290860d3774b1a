"""Runs pytest and ``grpc-conformance`` as their users do: in a process of its own, in a folder of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLUGIN = "grpc_conformance"
TIMEOUT = 60.0
"""Seconds after which a run is taken for hung."""


@dataclass(frozen=True)
class Ran:
    """A process that has ended."""

    code: int
    out: str
    err: str

    @property
    def text(self) -> str:
        return self.out + self.err

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    def results(self) -> str:
        """pytest's own last line, without the time."""
        last = [line for line in self.out.splitlines() if " in " in line and line.rstrip("= ").endswith("s")]
        return last[-1].strip("= ").partition(" in ")[0] if last else ""


def environment(changes: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what the outer pytest and CI have set in it; plugins are named, not found."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST") and k not in ("CI", "COLUMNS")}
    return {**kept, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(changes or {})}


def run(command: Sequence[str], folder: Path, changes: Mapping[str, str] | None = None) -> Ran:
    """A command's output and exit code."""
    done = subprocess.run(
        command,
        cwd=folder,
        env=environment(changes),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def pytest_command(*arguments: str, plugins: Sequence[str] = (PLUGIN,)) -> list[str]:
    """A pytest command line with these plugins and no other."""
    loaded = [word for name in plugins for word in ("-p", name)]
    return [sys.executable, "-m", "pytest", *loaded, "-p", "no:cacheprovider", *arguments]


def run_pytest(
    folder: Path,
    *arguments: str,
    plugins: Sequence[str] = (PLUGIN,),
    changes: Mapping[str, str] | None = None,
) -> Ran:
    """A pytest run in a folder, with these plugins and no other."""
    return run(pytest_command(*arguments, plugins=plugins), folder, changes)


def cli_command(*arguments: str) -> list[str]:
    """A command line of ``grpc-conformance``."""
    return [str(Path(sys.executable).parent / "grpc-conformance"), *arguments]


def run_cli(folder: Path, *arguments: str, changes: Mapping[str, str] | None = None) -> Ran:
    """A run of ``grpc-conformance``."""
    return run(cli_command(*arguments), folder, changes)


def project(folder: Path, **files: str) -> Path:
    """Write files into a folder; ``test_a`` means ``test_a.py``."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text, encoding="utf-8")
    return folder


def report(path: Path) -> dict[str, Any]:
    """A JSON report."""
    data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return data
