"""What ``grpc-conformance run --help`` says: our options with their legal values; pytest tells its own."""

from __future__ import annotations

import argparse
from typing import Any

from pytest_grpc_conformance import flags, registry
from pytest_grpc_conformance.shared import CASES, WIRE

_DESCRIPTION = f"""\
Runs pytest on the cases ({CASES}), under a configuration of their own.
All further arguments go to pytest: -n 2 (pytest-xdist), -k WORDS, --maxfail 5, -q, ...; see pytest --help.
CASE is one case, as a failure's last line names it; without any, all run."""


class _Options:
    """Takes the options that the plugin declares to pytest; it has what is used of a ``pytest.Parser``."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._parser = parser

    def getgroup(self, name: str, description: str) -> _Options:
        self._group = self._parser.add_argument_group("options of the suite")
        return self

    def addoption(self, *names: str, **settings: Any) -> None:
        self._group.add_argument(*names, **settings)


def text() -> str:
    """The whole help."""
    parser = argparse.ArgumentParser(
        prog="grpc-conformance run",
        usage="grpc-conformance run [OPTION ...] [CASE ...]",
        description=_DESCRIPTION,
        epilog=_legal_values(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=False,
    )
    flags.add_to_parser(_Options(parser))  # type: ignore[arg-type]
    return parser.format_help()


def _legal_values() -> str:
    servers = ", ".join(registry.names(registry.SERVERS))
    protocols = ", ".join((*registry.names(registry.PROTOCOLS), WIRE))
    return (
        f"legal values here:\n"
        f"  --grpc-server, --grpc-require   {servers}\n"
        f"  --grpc-protocol                 {protocols}\n\n"
        "exit codes: 0 conforms, 1 does not or could not be judged, 2 interrupted, 4 wrong usage, 5 nothing ran"
    )
