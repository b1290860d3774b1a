"""A part of a case in a process of its own, for what may take the process down, or is about its end.

``LibraryTarget.in_child`` starts it; it serves on the same library, runs one function of the case's file, and prints
what that returned.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_grpc_conformance.transcript import harmless

if TYPE_CHECKING:
    from pytest_grpc_conformance.targets.library import LibraryTarget

RESULT = "RESULT "
START = 30.0
"""Seconds that a process may take beside the waits of the function: it imports what the case's process has imported."""


@dataclass(frozen=True, slots=True)
class ChildEnd:
    """How the process ended: its exit code (negative: the signal), ``None`` if it was still running and was killed."""

    code: int | None
    result: Any
    """What the function returned, as JSON; ``None`` if it did not get that far."""
    tail: str
    """The last lines of its output."""


def run(function: Callable[[LibraryTarget], Any], library: str, plan: str | None, timeout: float) -> ChildEnd:
    """Run a function of a case's file in a child. It has to be at the top of its module, and give plain data."""
    command = [sys.executable, "-m", __name__, "--library", library, "--timeout", str(timeout)]
    command += ["--plan", plan] if plan is not None else []
    command += [function.__code__.co_filename, function.__name__]
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    )
    code: int | None = None
    try:
        output, _ = process.communicate(timeout=timeout + START)
        code = process.returncode
    except subprocess.TimeoutExpired:
        process.kill()
        output, _ = process.communicate()
    lines = output.splitlines()
    results = [line.removeprefix(RESULT) for line in lines if line.startswith(RESULT)]
    tail = "\n".join(harmless(line) for line in lines[-4:] if not line.startswith(RESULT))
    return ChildEnd(code, json.loads(results[-1]) if results else None, tail)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve, run and print; returns the exit code."""
    from pytest_grpc_conformance import registry
    from pytest_grpc_conformance.servers.grpcio import GrpcioAio
    from pytest_grpc_conformance.targets.library import LibraryTarget
    from pytest_grpc_conformance.targets.loop_thread import LoopThread
    from pytest_grpc_conformance.targets.plan import load_plan

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--library", required=True)
    parser.add_argument("--plan")
    parser.add_argument("--timeout", required=True, type=float)
    parser.add_argument("file", type=Path)
    parser.add_argument("function")
    given = parser.parse_args(arguments)
    library = registry.server_library(given.library)
    if given.plan is not None:
        library = load_plan(given.plan).library or library
    loop = LoopThread()
    target = LibraryTarget(library, GrpcioAio(), loop, timeout=given.timeout)
    try:
        result = getattr(_module(given.file), given.function)(target)
        print(RESULT + json.dumps(result), flush=True)
    finally:
        target.close()
        loop.close()
    return 0


def _module(file: Path) -> Any:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    return module


if __name__ == "__main__":
    sys.exit(main())
