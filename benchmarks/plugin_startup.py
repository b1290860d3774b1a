"""What the installed plugin adds to a run that does not use it.

    python benchmarks/plugin_startup.py [--rounds 30]

Times whole pytest processes that collect and run one plain test, once with the plugin and once without
(``-p no:grpc_conformance``), one right after the other and in turn first, so that drift of the machine falls
on both. Every other installed plugin is left out on both sides, as each adds noise of its own. "within" compares
the runs without the plugin among themselves: the size of a difference that means nothing.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

WARM_UP_ROUNDS = 2
PLUGIN = "grpc_conformance"


def without(*plugins: str) -> list[str]:
    return [word for name in plugins for word in ("-p", f"no:{name}")]


@dataclass(frozen=True)
class Cost:
    """What one pytest process took, start to end, in milliseconds. A busy machine shows less in ``cpu``."""

    wall: float
    cpu: float


def cost(folder: Path, blocked: list[str]) -> Cost:
    command = [sys.executable, "-m", "pytest", "-q", *without("cacheprovider", *blocked), "test_plain.py"]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")}
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost(1000 * wall, 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))


def spread(values: list[float]) -> dict[str, object]:
    low, middle, high = statistics.quantiles(values, n=4)
    return {"median": round(middle, 3), "quartiles": [round(low, 3), round(high, 3)]}


def compare(ours: list[float], theirs: list[float]) -> dict[str, object]:
    return {
        "with_ms": spread(ours),
        "without_ms": spread(theirs),
        "difference_ms": spread([one - other for one, other in zip(ours, theirs, strict=True)]),
        "ratio": spread([one / other for one, other in zip(ours, theirs, strict=True)]),
        "within_ms": spread([one - other for one, other in zip(theirs[::2], theirs[1::2], strict=False)]),
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--rounds", type=int, default=30)
    options = arguments.parse_args()
    installed = [point.name for point in importlib.metadata.entry_points(group="pytest11")]
    if PLUGIN not in installed:
        raise SystemExit("pytest-grpc-conformance is not installed here")
    others = [name for name in installed if name != PLUGIN]
    with_it: list[Cost] = []
    without_it: list[Cost] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_plain.py").write_text("def test_plain():\n    pass\n")
        for number in range(WARM_UP_ROUNDS + options.rounds):
            arms = [([*others, PLUGIN], without_it), (others, with_it)]
            for blocked, taken in arms if number % 2 else reversed(arms):
                spent = cost(folder, blocked)
                if number >= WARM_UP_ROUNDS:
                    taken.append(spent)
    report = {
        "rounds": options.rounds,
        "cpu": compare([one.cpu for one in with_it], [one.cpu for one in without_it]),
        "wall": compare([one.wall for one in with_it], [one.wall for one in without_it]),
        "python": platform.python_version(),
        "machine": platform.machine(),
        "clock": "getrusage(RUSAGE_CHILDREN), time.perf_counter",
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
