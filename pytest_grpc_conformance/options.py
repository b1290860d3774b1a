"""What the user asked for, read once into one frozen object; every value is checked here, with the legal ones named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_grpc_conformance import registry
from pytest_grpc_conformance.flags import DEFAULT_TIMEOUT, READY_TIMEOUT
from pytest_grpc_conformance.shared import WIRE

if TYPE_CHECKING:
    import pytest

MOST = 100_000
"""The largest factor and number of seconds that an option takes: no wait of Python can be much longer than that."""


class BadOption(ValueError):
    """An option with a value that cannot be used; the message is one line for the user."""


@dataclass(frozen=True, slots=True)
class Options:
    """The choices of a run."""

    servers: tuple[str, ...]
    """Server libraries for in-process targets, in report order."""
    protocols: tuple[str, ...]
    wire: bool = False
    """Whether cases about the server library itself, which need no protocol, are part of the run."""
    require: frozenset[str] = frozenset()
    """Names whose absence fails the run instead of being reported as not applicable."""
    target: str | None = None
    command: str | None = None
    address: str | None = None
    timeout: float = DEFAULT_TIMEOUT
    ready_timeout: float = READY_TIMEOUT
    nightly: bool = False
    """Whether cases that take long run as well."""
    update_golden: bool = False
    report: str | None = None

    @property
    def in_process(self) -> bool:
        """Whether targets are server libraries in this process."""
        return self.command is None and self.address is None


def read(config: pytest.Config) -> Options:
    """The options of a run. Raises ``BadOption``, ``registry.UnknownName`` or ``registry.BrokenEntryPoint``."""
    get = config.getoption
    servers = _chosen(registry.SERVERS, "server", get("--grpc-server"))
    protocols, wire = _protocols(get("--grpc-protocol"))
    require = get("--grpc-require") or []
    for name in require:
        registry.check(registry.SERVERS, "server", name)
        if name not in servers:
            raise BadOption(f"--grpc-require {name}, but --grpc-server leaves it out; add --grpc-server {name}")
    registry.load(servers, protocols)
    target, command, address = get("--grpc-target"), get("--grpc-command"), get("--grpc-address")
    _check_ways(target, command, address, get("--grpc-server"), get("--grpc-protocol"))
    if address is not None:
        _check_address(address)
    if command is not None:
        _check_command(command)
    return Options(
        servers,
        protocols,
        wire,
        frozenset(require),
        target,
        command,
        address,
        DEFAULT_TIMEOUT * _positive("--grpc-timeout-scale", get("--grpc-timeout-scale"), 1.0),
        _positive("--grpc-ready-timeout", get("--grpc-ready-timeout"), READY_TIMEOUT),
        get("--grpc-nightly"),
        get("--grpc-update-golden"),
        _writable("--grpc-report", get("--grpc-report")),
    )


def _chosen(group: str, kind: str, given: Sequence[str] | None) -> tuple[str, ...]:
    for name in given or ():
        registry.check(group, kind, name)
    return tuple(dict.fromkeys(given)) if given else registry.names(group)


def _protocols(given: Sequence[str] | None) -> tuple[tuple[str, ...], bool]:
    """The chosen protocols, and whether cases about the library itself are chosen; without a choice, all of them."""
    if not given:
        return registry.names(registry.PROTOCOLS), True
    named = tuple(dict.fromkeys(name for name in given if name != WIRE))
    for name in named:
        registry.check(registry.PROTOCOLS, "protocol", name, besides=(WIRE,))
    return named, WIRE in given


def _positive(option: str, given: str | None, default: float) -> float:
    if given is None:
        return default
    try:
        value = float(given)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise BadOption(f"{option} {given!r} is not a number above 0")
    if value > MOST:
        raise BadOption(f"{option} {given!r} is more than {MOST:g}")
    return value


def _writable(option: str, path: str | None) -> str | None:
    """Better to say so before a long run than after it."""
    if path is None:
        return path
    try:
        # A path may be too long to ask about.
        is_folder, folder_is_there = Path(path).is_dir(), Path(path).absolute().parent.is_dir()
    except OSError as error:
        raise BadOption(f"{option} {path!r:.80}: {error.strerror}") from error
    if is_folder:
        raise BadOption(f"{option} {path!r} is a folder; name a file in it")
    if not folder_is_there:
        raise BadOption(f"{option} {path}: the folder {Path(path).parent} does not exist; make it, or name another")
    return path


def _check_ways(
    target: str | None,
    command: str | None,
    address: str | None,
    servers: Any,
    protocols_given: Sequence[str] | None,
) -> None:
    ways = {"--grpc-target": target, "--grpc-command": command, "--grpc-address": address}
    given = [name for name, value in ways.items() if value is not None]
    if len(given) > 1:
        raise BadOption(f"{' and '.join(given)} exclude each other; give one")
    if not given:
        return
    if len(set(protocols_given or ())) != 1:
        legal = ", ".join(registry.names(registry.PROTOCOLS))
        raise BadOption(f"{given[0]} speaks one protocol; say which with --grpc-protocol ({legal})")
    if given[0] != "--grpc-target" and WIRE in (protocols_given or ()):
        raise BadOption(f"{given[0]} cannot carry --grpc-protocol {WIRE}: its cases serve handlers of their own")
    if given[0] != "--grpc-target" and servers:
        raise BadOption(f"{given[0]} brings its own server; --grpc-server does not apply")


def _check_address(address: str) -> None:
    from pytest_grpc_conformance.targets.endpoint import parse_address

    try:
        parse_address(address)
    except ValueError as error:
        raise BadOption(f"--grpc-address {error}") from error


def _check_command(command: str) -> None:
    from pytest_grpc_conformance.targets.launched import split

    try:
        split(command)
    except ValueError as error:
        raise BadOption(str(error)) from error
