"""What handlers saw: noted on the server's loop or on its threads, read by the case."""

from __future__ import annotations

import threading
import time
from typing import Any


class NotSeen(TimeoutError):
    """A handler did not note something in time; the message says what was noted instead."""


class Seen:
    """Notes under names, in order; safe from all threads."""

    def __init__(self) -> None:
        self._notes: list[tuple[str, Any]] = []
        self._changed = threading.Condition()

    def note(self, what: str, value: Any = None) -> None:
        """Add a note."""
        with self._changed:
            self._notes.append((what, value))
            self._changed.notify_all()

    def values(self, what: str) -> list[Any]:
        """The values noted under a name so far."""
        with self._changed:
            return [value for name, value in self._notes if name == what]

    @property
    def names(self) -> list[str]:
        """Every note's name, in order."""
        with self._changed:
            return [name for name, _ in self._notes]

    def wait(self, what: str, timeout: float, *, count: int = 1) -> list[Any]:
        """The values under a name, once there are ``count``. Raises ``NotSeen`` after ``timeout`` seconds."""
        until = time.monotonic() + timeout
        with self._changed:
            while len(found := [value for name, value in self._notes if name == what]) < count:
                if not self._changed.wait(until - time.monotonic()):
                    times = "" if count == 1 else f" {count} times"
                    noted = ", ".join(name for name, _ in self._notes[-10:]) or "nothing"
                    raise NotSeen(f"the handler did not note {what!r}{times} within {timeout:g} s; it noted {noted}")
            return found
