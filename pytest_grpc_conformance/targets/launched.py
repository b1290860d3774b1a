"""A target that we start: a command that prints one ready line with its address, watched, and stopped at the end."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import threading
from collections import deque
from pathlib import Path
from types import TracebackType

from pytest_grpc_conformance.targets.base import TargetBroken
from pytest_grpc_conformance.targets.ending import Guard, TerminationInterrupts
from pytest_grpc_conformance.transcript import harmless

READY = re.compile(r"^READY address=(\S+)\s*$")
"""The line that a command prints on standard output once it serves."""
KEPT_LINES = 12


def split(command: str) -> list[str]:
    """The words of a command. Raises ``ValueError`` with a line that says what is wrong."""
    try:
        words = shlex.split(command)
    except ValueError as error:
        raise ValueError(f"cannot read --grpc-command {command!r}: {error}") from error
    if not words or not words[0]:
        raise ValueError("--grpc-command is empty; give the command that starts the server")
    return words


class LaunchedProcess:
    """A server process in a process group of its own, so that nothing of it is left running."""

    def __init__(self, command: str, *, ready_timeout: float, stop_timeout: float = 10.0) -> None:
        self.command = command
        self._ready_timeout = ready_timeout
        self._stop_timeout = stop_timeout
        self._tail: deque[str] = deque(maxlen=KEPT_LINES)
        self._ready = threading.Event()
        self.address = ""
        self._guard: Guard | None = None

    def start(self) -> LaunchedProcess:
        """Start the command and wait for its ready line. Raises ``TargetBroken`` with its last lines of output."""
        try:
            arguments = split(self.command)
        except ValueError as error:
            raise TargetBroken(str(error)) from error
        # Before the process, so that there is no moment in which a signal ends us and leaves it.
        self._interrupts = TerminationInterrupts()
        try:
            self._process = subprocess.Popen(
                arguments,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
            )
        except BaseException as error:
            self._interrupts.restore()
            if isinstance(error, OSError):
                raise TargetBroken(f"cannot start {arguments[0]!r}: {error.strerror}") from error
            raise
        self._reader = threading.Thread(target=self._read, name="read launched server", daemon=True)
        self._reader.start()
        try:
            self._guard = Guard(self._process.pid)
            self._wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def _wait_ready(self) -> None:
        if not self._ready.wait(self._ready_timeout):
            raise TargetBroken(
                self._story(f"was not ready within {self._ready_timeout:g} s (no line 'READY address=...')")
            )
        if not self.address:
            try:
                code = self._process.wait(1.0)
            except subprocess.TimeoutExpired:
                what = "closed its standard output without a line 'READY address=...'"
                raise TargetBroken(self._story(what)) from None
            raise TargetBroken(self._story(f"{_ended(code)} before it was ready"))

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            ready = READY.match(line)
            if ready and not self.address:
                self.address = ready[1]
                self._ready.set()
            else:
                self._tail.append(harmless(line.rstrip("\n")))
        self._ready.set()

    def _story(self, what: str) -> str:
        lines = "\n".join(f"    {line}" for line in self._tail) or "    (it printed nothing)"
        return f"the command {self.command!r} {what}; its last output:\n{lines}"

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def cpu_seconds(self) -> float:
        """User and system time that the process has used so far (Linux: from ``/proc``)."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def death(self) -> str:
        """In one line, how a process ended that is no longer alive."""
        return f"the command {self.command!r} {_ended(self._process.wait())} during the run"

    def obituary(self) -> str:
        """How it ended, with the last lines of its output."""
        self._reader.join(1.0)
        return self._story(f"{_ended(self._process.wait())} during the run")

    def stop(self) -> int:
        """Ask the process to stop, then make it; returns its exit code. Nothing of its group is left."""
        if self.alive:
            self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self._stop_timeout)
        except subprocess.TimeoutExpired:
            pass
        finally:  # Also when a second Ctrl-C cuts the wait short.
            self._kill_group()
            if self._guard is not None:
                self._guard.dismiss()
            self._interrupts.restore()
        code = self._process.wait()
        self._reader.join(self._stop_timeout)
        if self._process.stdout is not None and not self._reader.is_alive():
            self._process.stdout.close()
        return code

    def _kill_group(self) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def __enter__(self) -> LaunchedProcess:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()


def _ended(code: int) -> str:
    return f"ended with exit code {code}" if code >= 0 else f"was ended by {signal.Signals(-code).name}"
