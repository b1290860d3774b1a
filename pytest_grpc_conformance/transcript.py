"""The ordered record of one exchange: what the case sent, what came back, what the engine and the gate did.

Everything that a server says is hostile here: an entry is cut and stripped of control characters before it is
kept, so a failure can be printed to a terminal and stays one screen.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

LONGEST_ENTRY = 160
MOST_ENTRIES = 2_000


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing that happened: milliseconds since the transcript began, who did it, and what it was."""

    milliseconds: float
    actor: str
    what: str

    def __str__(self) -> str:
        return f"{self.milliseconds:9.1f} ms  {self.actor:<8} {self.what}"


def harmless(text: str, longest: int = LONGEST_ENTRY) -> str:
    """The text on one line, without control or formatting characters, cut to ``longest`` characters."""
    if len(text) <= longest and text.isprintable():
        return text
    cut = text[: longest * 4]
    clean = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return clean if len(clean) <= longest and len(text) <= longest * 4 else clean[: longest - 1] + "\u2026"


_Noted = tuple[float, str, "str | Callable[[], str]"]


class Transcript:
    """Entries in the order in which they happened, from any thread; the oldest go when there are very many."""

    def __init__(self) -> None:
        self._began = time.monotonic()
        self._entries: deque[_Noted] = deque(maxlen=MOST_ENTRIES)
        self._lost = 0
        self._lock = threading.Lock()

    def note(self, actor: str, what: str | Callable[[], str]) -> None:
        """Add an entry; ``what`` may hold anything that a server sent.

        A function is called only when the entry is read: most transcripts never are.
        """
        with self._lock:
            self._lost += len(self._entries) == MOST_ENTRIES
            self._entries.append(((time.monotonic() - self._began) * 1000, actor, what))

    def entries(self) -> tuple[Entry, ...]:
        """All entries so far."""
        with self._lock:
            noted = tuple(self._entries)
        return tuple(Entry(at, actor, harmless(what if isinstance(what, str) else what())) for at, actor, what in noted)

    def tail(self, count: int = 12) -> str:
        """The last ``count`` entries, one a line, with a first line that says how many came before."""
        entries = self.entries()
        shown = entries[-count:]
        left_out = self._lost + len(entries) - len(shown)
        head = [f"({left_out} earlier entries)"] if left_out else []
        return "\n".join([*head, *map(str, shown)])
