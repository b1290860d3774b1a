"""The command line options that the plugin adds. Every pytest run imports this, so it imports nothing itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest

DEFAULT_TIMEOUT = 10.0
"""Seconds that a single wait may take, before ``--grpc-timeout-scale``. It bounds a hang and proves nothing."""
READY_TIMEOUT = 60.0


def add_to_parser(parser: pytest.Parser) -> None:
    """Declare the options; no value is looked at yet."""
    group = parser.getgroup("grpc-conformance", "gRPC conformance")
    group.addoption(
        "--grpc-server",
        action="append",
        default=None,
        metavar="NAME",
        help="server library to test: grpcio, pygrpc-native or a registered one; repeatable (default: all)",
    )
    group.addoption(
        "--grpc-protocol",
        action="append",
        default=None,
        metavar="NAME",
        help="openengine, smg, a registered one, or grpc (cases about the library itself); repeatable (default: all)",
    )
    group.addoption(
        "--grpc-require",
        action="append",
        default=None,
        metavar="NAME",
        help="fail the run when this server library is missing or too old; repeatable",
    )
    group.addoption(
        "--grpc-target",
        default=None,
        metavar="MODULE:FACTORY",
        help="test your own servicers: a function from an engine to [(add_to_server, servicer), ...], or a TargetPlan",
    )
    group.addoption(
        "--grpc-command",
        default=None,
        metavar="COMMAND",
        help="test a server that this command starts; it must print 'READY address=HOST:PORT' on standard output",
    )
    group.addoption("--grpc-address", default=None, metavar="HOST:PORT", help="test a server that is running already")
    group.addoption(
        "--grpc-timeout-scale",
        default=None,
        metavar="FACTOR",
        help=f"factor on the time that any single wait may take ({DEFAULT_TIMEOUT:g} s), above 0 (default: 1)",
    )
    group.addoption(
        "--grpc-ready-timeout",
        default=None,
        metavar="SECONDS",
        help=f"how long --grpc-command may take until it is ready, above 0 (default: {READY_TIMEOUT:g})",
    )
    group.addoption(
        "--grpc-nightly",
        action="store_true",
        default=False,
        help="run the cases that take long as well, and 20,000 malformed inputs for each library instead of 500",
    )
    group.addoption(
        "--grpc-update-golden",
        action="store_true",
        default=False,
        help="write the golden files from the rule and show what changed; not under xdist, not in CI",
    )
    group.addoption(
        "--grpc-report",
        default=None,
        metavar="FILE.json",
        help="write the results of the conformance cases as JSON",
    )
