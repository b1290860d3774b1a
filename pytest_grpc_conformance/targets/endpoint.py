"""A target that somebody else runs: an address, its protocol, and nothing behind it that a case could hold."""

from __future__ import annotations

import ipaddress
import re
import socket

from pytest_grpc_conformance.protocols.base import WireProtocol
from pytest_grpc_conformance.targets.base import Target, TargetBroken
from pytest_grpc_conformance.transcript import harmless

_ADDRESS = re.compile(r"(?:\[(?P<v6>[0-9a-fA-F:.]+)\]|(?P<host>[^\s:/\[\]]+)):(?P<port>[0-9]{1,5})")


class EndpointTarget(Target):
    """A running server at ``host:port``."""

    def __init__(self, address: str, protocol: WireProtocol, *, timeout: float, model: str, name: str = "") -> None:
        super().__init__()
        self._address = address
        self._model = model
        self.name = name or address
        self.protocol = protocol
        self.timeout = timeout
        self.capabilities = frozenset()

    @property
    def address(self) -> str:
        return self._address

    @property
    def model(self) -> str:
        return self._model


def parse_address(address: str) -> tuple[str, int]:
    """Host and port of ``host:port`` or ``[v6]:port``. Raises ``ValueError`` with a line that says what is wrong."""
    match = _ADDRESS.fullmatch(address)
    if not match or not 0 < int(match["port"]) < 65536 or not _can_be_a_host(match["host"], match["v6"]):
        raise ValueError(f"{address!r:.120} is not host:port (IPv6 hosts in brackets)")
    return match["v6"] or match["host"], int(match["port"])


def _can_be_a_host(name: str | None, v6: str | None) -> bool:
    try:
        if v6 is not None:
            ipaddress.IPv6Address(v6)
        elif name is not None:
            name.encode("idna")
    except ValueError:
        return False
    return True


def check_listens(address: str, timeout: float) -> None:
    """Raises ``TargetBroken`` when nothing listens at an address, or it is none."""
    try:
        socket.create_connection(parse_address(address), timeout).close()
    except ValueError as error:
        raise TargetBroken(f"the address {error}") from error
    except OSError as error:
        raise TargetBroken(f"nothing answers at {address}: {error.strerror or error}") from error


def probe(address: str, protocol: WireProtocol, timeout: float) -> str:
    """Ask the server one tiny question, its model's name, and return the answer.

    Raises ``TargetBroken`` when nothing listens there, or when what listens does not answer.
    """
    check_listens(address, timeout)
    import grpc

    from pytest_grpc_conformance.protocols.client import CHANNEL_OPTIONS

    with grpc.insecure_channel(address, options=list(CHANNEL_OPTIONS)) as channel:
        try:
            return protocol.model_name(channel, timeout)
        except grpc.RpcError as error:
            answer = f"{error.code().name}: {error.details()}" if isinstance(error, grpc.Call) else str(error)
            what = f"{address} does not answer as a {protocol.title} server ({harmless(answer)})"
            raise TargetBroken(f"{what}; is --grpc-protocol right?") from error
