"""The ``grpc-conformance`` command."""

from __future__ import annotations

import argparse
import asyncio
import importlib.resources
import importlib.util
import os
import sys
from collections.abc import Sequence

from pytest_grpc_conformance import __version__, registry

USAGE_ERROR = 4
"""pytest's exit code for a wrong command line, which the whole command uses."""
INTERRUPTED = 2
"""And its exit code for Ctrl-C."""
CASES = "pytest_grpc_conformance.cases"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code: 0 conforms, 1 does not, 4 wrong command line."""
    try:
        try:
            return _main(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # Who read the output (head, say) has seen enough. What is still buffered goes nowhere, not to a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED


def _main(arguments: Sequence[str] | None) -> int:
    parser = _parser()
    given, rest = parser.parse_known_args(arguments)
    if rest and given.command != "run":
        return _complain(f"unknown argument {rest[0]!r}; see grpc-conformance {given.command} --help")
    given.rest = rest
    try:
        code: int = given.act(given)
    except (registry.UnknownName, registry.BrokenEntryPoint) as error:
        return _complain(str(error))
    return code


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line, with pytest's exit code."""

    def error(self, message: str) -> None:  # type: ignore[override]
        self.exit(USAGE_ERROR, f"{self.prog}: {message}\n")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="grpc-conformance", description="Conformance of gRPC servers that stream LLM tokens.")
    parser.add_argument("--version", action="version", version=f"pytest-grpc-conformance {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=_Parser)
    run = commands.add_parser("run", help="run the cases; further arguments go to pytest", add_help=False)
    run.set_defaults(act=_run)
    serve = commands.add_parser("serve", help="serve the fake engine until SIGTERM or Ctrl-C")
    serve.add_argument("--protocol", required=True, help=f"one of {', '.join(registry.names(registry.PROTOCOLS))}")
    serve.add_argument("--server", default="grpcio", help=f"one of {', '.join(registry.names(registry.SERVERS))}")
    serve.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    serve.add_argument("--port", type=_port, default=0, help="0 lets the kernel choose (default)")
    serve.add_argument("--grace", type=_seconds, default=5.0, help="seconds for running calls at the end (default: 5)")
    serve.set_defaults(act=_serve)
    rows = commands.add_parser("requirements", help="list the requirement rows and the cases that check them")
    which = rows.add_mutually_exclusive_group()
    for state, told in (("unchecked", "no case checks yet"), ("unobserved", "no test can observe, with the reason")):
        which.add_argument(f"--{state}", action="store_const", const=state, dest="only", help=f"only rows that {told}")
    rows.add_argument("--json", action="store_true", help="as JSON")
    rows.set_defaults(act=_requirements)
    findings = commands.add_parser("findings", help="what released server libraries are known to do differently")
    findings.add_argument("--output", metavar="FILE.md", default=None, help="write the page (default: print it)")
    findings.set_defaults(act=_findings)
    bench = commands.add_parser("bench", help="measure the fake engine against full servers, as ratios in one run")
    bench.add_argument("--protocol", default="openengine", help="default: %(default)s")
    bench.add_argument("--server", action="append", default=None, help="repeatable (default: all that are installed)")
    bench.add_argument("--requests", type=_count, default=64, help="streams at once (default: %(default)s)")
    bench.add_argument("--tokens", type=_count, default=128, help="tokens per request (default: %(default)s)")
    bench.add_argument("--rounds", type=_count, default=5, help="counted rounds (default: %(default)s)")
    bench.add_argument("--json", action="store_true", help="as JSON")
    bench.set_defaults(act=_bench)
    return parser


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port (0 to 65535)")
    return int(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 on")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return value


def _complain(message: str) -> int:
    print(f"grpc-conformance: {message}", file=sys.stderr)
    return USAGE_ERROR


def ini_file() -> str:
    """The pytest configuration under which the cases run, whatever the user's own says."""
    return str(importlib.resources.files("pytest_grpc_conformance") / "conformance.ini")


def _run(given: argparse.Namespace) -> int:
    if {"-h", "--help"} & set(given.rest):
        from pytest_grpc_conformance import run_help

        print(run_help.text(), end="")
        return 0
    import pytest

    # One case, as a failure's last line names it, instead of all.
    chosen = [] if any(word.startswith(CASES) for word in given.rest) else [CASES]
    # The user's own ini could rename test files or add options that the cases do not know.
    return int(pytest.main(["-c", ini_file(), "--rootdir", ".", *_loop_scope(), "--pyargs", *chosen, *given.rest]))


def _loop_scope() -> list[str]:
    """The key that pytest-asyncio asks for. Old ones do so before a filter of an ini file is in force."""
    loaded = importlib.util.find_spec("pytest_asyncio") and not os.environ.get("PYTEST_DISABLE_PLUGIN_AUTOLOAD")
    return ["-o", "asyncio_default_fixture_loop_scope=function"] if loaded else []


def _serve(given: argparse.Namespace) -> int:
    from pytest_grpc_conformance.serve import ServeOptions, serve
    from pytest_grpc_conformance.servers.base import BindFailed

    registry.check(registry.PROTOCOLS, "protocol", given.protocol)
    found = registry.server_library(given.server).availability()
    if not found.available:
        return _complain(f"--server {given.server}: {found.reason}; {found.remedy}")
    try:
        asyncio.run(serve(ServeOptions(given.protocol, given.server, given.host, given.port, given.grace)))
    except BindFailed as error:
        print(f"grpc-conformance: {error}", file=sys.stderr)
        return 1
    return 0


def _requirements(given: argparse.Namespace) -> int:
    from pytest_grpc_conformance.case_listing import ListingFailed, list_cases
    from pytest_grpc_conformance.requirements import catalogue
    from pytest_grpc_conformance.requirements.coverage import cover, render_json, render_text

    try:
        coverage = cover(catalogue(), list_cases(ini_file(), CASES))
    except ListingFailed as error:
        print(f"grpc-conformance: the cases cannot be listed: {error}", file=sys.stderr)
        return 1
    text = render_json(coverage) if given.json else render_text(coverage, only=given.only)
    print(text)
    return 0


def _findings(given: argparse.Namespace) -> int:
    from pathlib import Path

    from pytest_grpc_conformance.deviation import declared
    from pytest_grpc_conformance.reports.findings import render
    from pytest_grpc_conformance.requirements import catalogue

    page = render(declared(), catalogue())
    if given.output is None:
        print(page, end="")
        return 0
    try:
        Path(given.output).write_text(page, encoding="utf-8")
    except OSError as error:
        return _complain(f"cannot write {given.output}: {error.strerror}")
    return 0


def _bench(given: argparse.Namespace) -> int:
    import json

    from pytest_grpc_conformance.bench import BenchOptions, measure, render
    from pytest_grpc_conformance.targets.base import TargetBroken

    registry.check(registry.PROTOCOLS, "protocol", given.protocol)
    installed = [n for n in registry.names(registry.SERVERS) if registry.server_library(n).availability().available]
    for name in given.server or ():
        found = registry.server_library(name).availability()
        if not found.available:
            return _complain(f"--server {name}: {found.reason}; {found.remedy}")
    options = BenchOptions(given.protocol, tuple(given.server or installed), given.requests, given.tokens, given.rounds)
    try:
        report = measure(options)
    except TargetBroken as error:
        print(f"grpc-conformance: {error}", file=sys.stderr)
        return 1
    print(json.dumps(report, indent=1) if given.json else "\n".join(render(report)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
