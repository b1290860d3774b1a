"""Faults of the servicer context: what it says, reads and writes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any, ClassVar

import grpc
import grpc.aio

from pytest_grpc_conformance.wire.frames import Kind
from tests.faults.faulty_library import FaultyContext, FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


class OneMoreMethod(FaultyContext):
    def __dir__(self) -> list[str]:
        return [*dir(self._real), "cancel"]


class CodeAsEnum(FaultyContext):
    def code(self) -> Any:
        given = self._real.code()
        return next((code for code in grpc.StatusCode if code.value[0] == given), grpc.StatusCode.UNKNOWN)


class NoDetailsAreNone(FaultyContext):
    def details(self) -> Any:
        return self._real.details() or None


class DetailsTakeAnything(FaultyContext):
    def set_details(self, details: Any) -> None:
        self._real.set_details("" if details is None else str(details))


class TrailingMetadataAsGiven(FaultyContext):
    _given: Any = ()

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._given = metadata

    def trailing_metadata(self) -> Any:
        return self._given


class PeerWithoutScheme(FaultyContext):
    def peer(self) -> str:
        return str(self._real.peer().partition(":")[2])


class EmptyPeerIdentities(FaultyContext):
    def peer_identities(self) -> list[bytes]:
        return []


class SharedAuthContext(FaultyContext):
    _shared: ClassVar[dict[str, list[bytes]]] = {}

    def auth_context(self) -> dict[str, list[bytes]]:
        self._shared.update(self._real.auth_context())
        return self._shared


class EofAsNone(FaultyContext):
    async def read(self) -> Any:
        found = await self._real.read()
        return None if found is vars(grpc.aio)["EOF"] else found


class ReadsAhead(FaultyContext):
    """``read()`` takes one message more from the stream than it gives, which ``async for`` then misses."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self._ahead: list[Any] = []

    async def read(self) -> Any:
        while len(self._ahead) < 2:
            self._ahead.append(await self._real.read())
        return self._ahead.pop(0)


class HiddenWriteErrors(FaultyContext):
    async def write(self, message: Any) -> None:
        with contextlib.suppress(Exception):
            await self._real.write(message)


class WritesOneBehind(FaultyContext):
    """A written message is sent with the next one."""

    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self._held: list[Any] = []

    async def write(self, message: Any) -> None:
        self._held.append(message)
        if len(self._held) > 1:
            await self._real.write(self._held.pop(0))


class WriteWaits(FaultyContext):
    async def write(self, message: Any) -> None:
        await asyncio.Event().wait()


class FirstStreamWithoutData(FrameFault):
    """OK without any message where the handler wrote one: grpcio's own deviation is two messages."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [] if passing.kind == Kind.DATA and passing.stream == 1 else [passing]


class DropsConcurrentWrites(FaultyContext):
    _writing = False

    async def write(self, message: Any) -> None:
        if self._writing:
            return
        self._writing = True
        try:
            await self._real.write(message)
        finally:
            self._writing = False


one_more_method = Mutant(library=FaultyLibrary(context=OneMoreMethod))
code_as_enum = Mutant(library=FaultyLibrary(context=CodeAsEnum))
no_details_are_none = Mutant(library=FaultyLibrary(context=NoDetailsAreNone))
details_take_anything = Mutant(library=FaultyLibrary(context=DetailsTakeAnything))
trailing_metadata_as_given = Mutant(library=FaultyLibrary(context=TrailingMetadataAsGiven))
peer_without_scheme = Mutant(library=FaultyLibrary(context=PeerWithoutScheme))
empty_peer_identities = Mutant(library=FaultyLibrary(context=EmptyPeerIdentities))
shared_auth_context = Mutant(library=FaultyLibrary(context=SharedAuthContext))
eof_as_none = Mutant(library=FaultyLibrary(context=EofAsNone))
reads_ahead = Mutant(library=FaultyLibrary(context=ReadsAhead))
hidden_write_errors = Mutant(library=FaultyLibrary(context=HiddenWriteErrors))
writes_one_behind = Mutant(library=FaultyLibrary(context=WritesOneBehind))
write_waits = Mutant(library=FaultyLibrary(context=WriteWaits))
first_stream_without_data = Mutant(library=FaultyLibrary(frames=FirstStreamWithoutData))
drops_concurrent_writes = Mutant(library=FaultyLibrary(context=DropsConcurrentWrites))


def _fault(mutant: str, row: str, *functions: str) -> Fault:
    return Fault(mutant, caught_by={f"grpc_context/{name}": row for name in functions}, protocols=WIRE)


FAULTS = (
    _fault("one_more_method", "GRPC-CTX-01", "context_has_these_methods"),
    _fault("code_as_enum", "GRPC-CTX-02", "code_is_what_was_given"),
    _fault("no_details_are_none", "GRPC-CTX-03", "details_are_what_was_given"),
    _fault("details_take_anything", "GRPC-CTX-04", "details_set_to_none", "details_that_are_no_text"),
    _fault("trailing_metadata_as_given", "GRPC-CTX-05", "trailing_metadata_is_a_tuple"),
    Fault(
        "peer_without_scheme",
        caught_by={
            "grpc_context/peer_over_ipv4": "GRPC-CTX-06",
            "grpc_context/peer_over_ipv6": "GRPC-CTX-07",
            "grpc_context/peer_over_unix_socket": "GRPC-CTX-07",
            "grpc_context/peer_in_each_kind_of_method": "GRPC-CTX-08",
        },
        protocols=WIRE,
    ),
    _fault("empty_peer_identities", "GRPC-CTX-09", "auth_context_of_insecure_port"),
    _fault("shared_auth_context", "GRPC-CTX-10", "auth_context_is_not_shared"),
    _fault("eof_as_none", "GRPC-CTX-11", "read_without_request_stream"),
    _fault("reads_ahead", "GRPC-CTX-12", "read_mixed_with_iteration"),
    _fault("hidden_write_errors", "GRPC-CTX-13", "write_that_cannot_be_serialised"),
    _fault("writes_one_behind", "GRPC-CTX-14", "write_mixed_with_yield"),
    _fault("write_waits", "GRPC-CTX-15", "write_in_unary_handler_ends"),
    _fault("first_stream_without_data", "GRPC-CTX-15", "write_in_unary_handler_is_one_message"),
    _fault("drops_concurrent_writes", "GRPC-CTX-16", "concurrent_writes_lose_nothing"),
)
