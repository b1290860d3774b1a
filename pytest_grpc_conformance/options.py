"""What the user asked for, read once into one frozen object; every value is checked here, with the legal ones named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_grpc_conformance import registry

if TYPE_CHECKING:
    import pytest

DEFAULT_TIMEOUT = 10.0
"""Seconds that a single wait may take, before ``--grpc-timeout-scale``. It bounds a hang and proves nothing."""
READY_TIMEOUT = 60.0


class BadOption(ValueError):
    """An option with a value that cannot be used; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of a run."""

    servers: tuple[str, ...]
    """Server libraries for in-process targets, in report order."""
    protocols: tuple[str, ...]
    require: frozenset[str] = frozenset()
    """Names whose absence fails the run instead of being reported as not applicable."""
    target: str | None = None
    command: str | None = None
    address: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    ready_timeout: float = READY_TIMEOUT
    update_golden: bool = False
    report: str | None = None

    @property
    def in_process(self) -> bool:
        """Whether targets are server libraries in this process."""
        return self.command is None and self.address is None


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
        help="wire protocol: openengine, smg or a registered one; repeatable (default: all)",
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
    group.addoption(
        "--grpc-address", default=None, metavar="HOST:PORT", help="test a server that is running already"
    )
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


def read(config: pytest.Config) -> Options:
    """The options of a run. Raises ``BadOption``, ``registry.UnknownName`` or ``registry.BrokenEntryPoint``."""
    get = config.getoption
    servers = _chosen(registry.SERVERS, "server", get("--grpc-server"))
    protocols = _chosen(registry.PROTOCOLS, "protocol", get("--grpc-protocol"))
    require = get("--grpc-require") or []
    for name in require:
        registry.check(registry.SERVERS, "server", name)
        if name not in servers:
            raise BadOption(
                f"--grpc-require {name}, but --grpc-server leaves it out; add --grpc-server {name}"
            )
    target, command, address = get("--grpc-target"), get("--grpc-command"), get("--grpc-address")
    _check_ways(target, command, address, get("--grpc-server"), get("--grpc-protocol"), protocols)
    if address is not None:
        _check_address(address)
    return Options(
        servers,
        protocols,
        frozenset(require),
        target,
        command,
        address,
        DEFAULT_TIMEOUT * _positive("--grpc-timeout-scale", get("--grpc-timeout-scale"), 1.0),
        _positive("--grpc-ready-timeout", get("--grpc-ready-timeout"), READY_TIMEOUT),
        get("--grpc-update-golden"),
        get("--grpc-report"),
    )


def _chosen(group: str, kind: str, given: Sequence[str] | None) -> tuple[str, ...]:
    for name in given or ():
        registry.check(group, kind, name)
    return tuple(dict.fromkeys(given)) if given else registry.names(group)


def _positive(option: str, given: str | None, default: float) -> float:
    if given is None:
        return default
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadOption(f"{option} {given!r} is not a number above 0")
    return value


def _check_ways(
    target: str | None,
    command: str | None,
    address: str | None,
    servers: Any,
    protocols_given: Any,
    protocols: tuple[str, ...],
) -> None:
    ways = {"--grpc-target": target, "--grpc-command": command, "--grpc-address": address}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise BadOption(f"{' and '.join(given)} exclude each other; give one")
    if not given:
        return
    if not protocols_given or len(protocols) != 1:
        legal = ", ".join(registry.names(registry.PROTOCOLS))
        raise BadOption(f"{given[0]} speaks one protocol; say which with --grpc-protocol ({legal})")
    if given[0] != "--grpc-target" and servers:
        raise BadOption(f"{given[0]} brings its own server; --grpc-server does not apply")


def _check_address(address: str) -> None:
    from pytest_grpc_conformance.targets.endpoint import parse_address

    try:
        parse_address(address)
    except ValueError as error:
        raise BadOption(f"--grpc-address {error}") from error
