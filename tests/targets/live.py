"""Processes that tests start: servers, and pytest runs that are interrupted. Nothing of them is left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.running import environment

DEADLINE = 30.0
SERVE = [sys.executable, "-m", "pytest_grpc_conformance.cli", "serve"]


def serve_command(protocol: str = "smg", *more: str) -> list[str]:
    return [*SERVE, "--protocol", protocol, *more]


@contextlib.contextmanager
def started(command: Sequence[str], folder: Path, *, stdout: int | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, of which nothing is left at the end."""
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=stdout or subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdout is not None:
            process.stdout.close()


@contextlib.contextmanager
def served(folder: Path, protocol: str = "smg", *more: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """A running ``grpc-conformance serve`` with its address."""
    with started(serve_command(protocol, *more), folder) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("READY address="), line + process.stdout.read()
        yield line.strip().removeprefix("READY address="), process


def appears(path: Path) -> str:
    """The text of a file once it is there and has any."""
    deadline = time.monotonic() + DEADLINE
    while not path.exists() or not path.read_text():
        assert time.monotonic() < deadline, f"{path} does not appear"
        time.sleep(0.02)
    return path.read_text()


def is_running(pid: int) -> bool:
    """Whether a process is there that is more than a record of its end."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def ends(pid: int) -> bool:
    """Whether a process ends in time, by itself or since somebody has told it to."""
    deadline = time.monotonic() + DEADLINE
    while is_running(pid):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True
