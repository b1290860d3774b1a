"""Answers the requests of all goldens of a protocol with a server in this process, and prints them as JSON.

``golden.py`` starts it with the protobuf back end that its own process does not use: a back end is chosen once for a
whole process. Printed are the back end that was really used and, for each golden, the raw messages and the status.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

from pytest_grpc_conformance import golden, registry
from pytest_grpc_conformance.protocols.stream import NothingCame
from pytest_grpc_conformance.targets.base import Target
from pytest_grpc_conformance.targets.inprocess import InprocessTarget
from pytest_grpc_conformance.targets.loop_thread import LoopThread
from pytest_grpc_conformance.targets.plan import load_plan


def main(arguments: Sequence[str] | None = None) -> int:
    """Answer and print; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--protocol", required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--target")
    parser.add_argument("--timeout", required=True, type=float)
    given = parser.parse_args(arguments)
    json.dump({"backend": golden.backend(), "answers": _answers(given)}, sys.stdout)
    return 0


def _answers(given: argparse.Namespace) -> dict[str, Any]:
    plan = load_plan(given.target) if given.target else None
    library, wire = registry.server_library(given.server), registry.protocol(given.protocol)
    loop = LoopThread()
    target = InprocessTarget(library, wire, loop, timeout=given.timeout, plan=plan)
    answers = {}
    try:
        target.start()
        for recipe in golden.recipes(given.protocol):
            answers[recipe.file] = answer = _answer(target, recipe)
            if answer["status"] != "OK":
                break  # A server that hangs once may hang each time, and one difference is enough.
    finally:
        target.close()
        loop.close()
    return answers


def _answer(target: Target, recipe: golden.Recipe) -> dict[str, Any]:
    stream = target.play(recipe.script, recipe.request)
    try:
        stream.rest()
        status = stream.status.code if stream.status else "no status"
    except NothingCame as nothing:
        status = str(nothing)
    return {"messages": [item.raw.hex() for item in stream.received], "status": status}


if __name__ == "__main__":
    sys.exit(main())
