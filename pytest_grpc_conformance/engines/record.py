"""What an engine remembers of its past, for tests to read."""

from __future__ import annotations

from typing import TypeVar

T = TypeVar("T")


class Record(list[T]):
    """A list that keeps its last ``most`` entries (``None``: all), and counts all that were ever added."""

    def __init__(self, most: int | None) -> None:
        super().__init__()
        self.total = 0
        self._most = most

    def append(self, entry: T) -> None:
        self.total += 1
        super().append(entry)
        if self._most is not None and len(self) > self._most:
            del self[0]
