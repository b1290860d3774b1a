"""A server that a run has started ends with the run, however the run ends."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
import threading

TERMINATION = (signal.SIGTERM, signal.SIGHUP)
_WATCH = "import os, signal, sys; sys.stdin.read(1) or os.killpg(int(sys.argv[1]), signal.SIGKILL)"


class TerminationInterrupts:
    """Until ``restore``, SIGTERM and SIGHUP do what Ctrl-C does, so that a run is taken down and tells what it has.

    What somebody else has set for a signal stays: a handler, or that it is ignored.
    """

    def __init__(self) -> None:
        self._ours: list[signal.Signals] = []
        # Python lets nobody else set a handler. What a run in another thread starts still has its guard.
        if threading.current_thread() is threading.main_thread():
            self._ours = [number for number in TERMINATION if signal.getsignal(number) is signal.SIG_DFL]
        for number in self._ours:
            signal.signal(number, signal.default_int_handler)

    def restore(self) -> None:
        """Put back what was there; a handler that somebody has set since stays."""
        ours, self._ours = self._ours, []
        for number in ours:
            if signal.getsignal(number) is signal.default_int_handler:
                signal.signal(number, signal.SIG_DFL)


class Guard:
    """A process that kills a process group once this process is gone, for ends that nothing can be done before.

    SIGKILL is one, ``os._exit`` another. The guard reads from a pipe, which ends when this process does.
    """

    def __init__(self, group: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _WATCH, str(group)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            # What ends a whole group, as a terminal does, must not end the guard before its time.
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """End the guard before it sees an end of its pipe. Idempotent."""
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self._process.stdin.close()
