"""How much memory this process has taken at most: servers under test live in it. Linux tells; others do not."""

from __future__ import annotations

from pathlib import Path

_STATUS = Path("/proc/self/status")
_CLEAR = Path("/proc/self/clear_refs")


class PeakUnknown(Exception):
    """The peak cannot be measured here; the message says why."""


class PeakMemory:
    """Measures from its creation on. Raises ``PeakUnknown``."""

    def __init__(self) -> None:
        try:
            _CLEAR.write_text("5")  # The peak is what is resident now.
        except OSError as error:
            raise PeakUnknown(f"the peak of resident memory cannot be reset here: {error}") from error
        self._before = _field("VmRSS")

    def growth(self) -> int:
        """Octets that the peak of resident memory lies above what was resident at first."""
        return max(0, _field("VmHWM") - self._before)


def _field(name: str) -> int:
    for line in _STATUS.read_text("ascii", "replace").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise PeakUnknown(f"{_STATUS} does not tell {name}")
