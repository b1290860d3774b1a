"""Faults of response metadata: how it is sent, when, and what becomes of what a handler may not give."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import grpc.aio

from pytest_grpc_conformance.wire.frames import Flag, Kind
from tests.faults.faulty_library import FaultyContext, FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


def giving(change: Callable[[Any], Any]) -> Mutant:
    """A library that makes something else of the metadata that handlers give, in all places."""

    class Context(FaultyContext):
        async def send_initial_metadata(self, metadata: Any) -> None:
            await self._real.send_initial_metadata(change(metadata))

        def set_trailing_metadata(self, metadata: Any) -> None:
            self._real.set_trailing_metadata(change(metadata))

        async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
            await self._real.abort(code, details, change(trailing_metadata))

    return Mutant(library=FaultyLibrary(context=Context))


def tuples_only(metadata: Any) -> Any:
    if not isinstance(metadata, tuple) or not all(isinstance(pair, tuple) for pair in metadata):
        raise TypeError("expected a tuple of pairs")
    return metadata


def valid_pairs(metadata: Any) -> tuple[Any, ...]:
    """The pairs that can be sent; the others are dropped without a word."""
    return tuple((key, value) for key, value in metadata if valid(key, value))


def valid(key: str, value: Any) -> bool:
    printable = isinstance(value, bytes) or (value.isascii() and value.isprintable())
    return printable and bool(key) and key.isascii() and key == key.lower() and not set(key) & {" ", ":"}


def bytes_like_as_bytes(metadata: Any) -> tuple[Any, ...]:
    return tuple((key, value if isinstance(value, str) else bytes(value)) for key, value in metadata)


metadata_of_tuples_only = giving(tuples_only)
invalid_metadata_dropped = giving(valid_pairs)
bytes_like_values_sent = giving(bytes_like_as_bytes)
bytes_in_python_syntax = giving(
    lambda pairs: tuple((key, value if key.endswith("-bin") else str(value)) for key, value in pairs)
)
grpc_prefix_dropped = giving(lambda pairs: tuple(pair for pair in pairs if not pair[0].startswith("grpc-")))
values_cut_at_4k = giving(lambda pairs: tuple((key, value[:4096]) for key, value in pairs))
at_most_64_fields_sent = giving(lambda pairs: tuple(pairs)[:64])
last_value_of_a_key = giving(lambda pairs: tuple(dict(pairs).items()))


class _AnythingAsTrailers(FaultyContext):
    def set_trailing_metadata(self, metadata: Any) -> None:
        with contextlib.suppress(TypeError):
            self._real.set_trailing_metadata(metadata)


class _LateInitialIgnored(FaultyContext):
    async def send_initial_metadata(self, metadata: Any) -> None:
        with contextlib.suppress(grpc.aio.UsageError):
            await self._real.send_initial_metadata(metadata)


class _LateInitialIsAValueError(FaultyContext):
    async def send_initial_metadata(self, metadata: Any) -> None:
        try:
            await self._real.send_initial_metadata(metadata)
        except grpc.aio.UsageError as error:
            raise ValueError("Initial metadata no longer allowed!") from error


class _TrailersAppended(FaultyContext):
    """Trailing metadata is added to what was set before, also by an abort."""

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._real.set_trailing_metadata((*self._real.trailing_metadata(), *metadata))

    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        await self._real.abort(code, details, (*self._real.trailing_metadata(), *trailing_metadata))


class _AbortClearsTrailers(FaultyContext):
    async def abort(self, code: Any, details: str = "", trailing_metadata: Any = ()) -> None:
        self._real.set_trailing_metadata(())
        await self._real.abort(code, details, trailing_metadata)


class Padded(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.fields is None:
            return [passing]
        return [passing.but(fields=tuple((name, self._padded(name, value)) for name, value in passing.fields))]

    def _padded(self, name: bytes, value: bytes) -> bytes:
        return value + b"=" * (-len(value) % 4) if name.endswith(b"-bin") else value


class HeadersWithTheNextFrame(FrameFault):
    """Response headers wait for the next frame of their stream; before trailers of a failure they are joined to them.

    So does a library that builds the whole response before it sends anything.
    """

    def __init__(self) -> None:
        self._held: dict[int, Passing] = {}

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.fields is not None and not passing.ends_stream:
            self._held[passing.stream] = passing
            return []
        held = self._held.pop(passing.stream, None) if passing.kind in (Kind.DATA, Kind.HEADERS) else None
        if held is None:
            return [passing]
        if passing.fields is None:
            return [held, passing]
        return [passing.but(fields=(*(held.fields or ()), *passing.fields))]


class InvalidMetadataIsForgotten(FrameFault):
    """A response with metadata that cannot be sent is never sent: the call stalls."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        invalid = passing.is_trailers and (b"grpc-message", b"Invalid metadata") in (passing.fields or ())
        return [] if invalid or passing.kind == Kind.RST_STREAM else [passing]


class ConnectionFieldsResetTheStream(FrameFault):
    """A response with a connection-specific field becomes RST_STREAM, as where the HTTP/2 layer refuses to send it.

    grpcio 1.85.3, which sends the field, fails without this fault too.
    """

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        names = {name for name, _ in passing.fields or ()}
        if names & {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}:
            return [Passing(Kind.RST_STREAM, Flag.NONE, passing.stream, b"\0\0\0\x08")]
        return [passing]


class BinaryAsBase64Text(FrameFault):
    """``-bin`` values are encoded twice."""

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.fields is None:
            return [passing]
        return [passing.but(fields=tuple((name, self._encoded(name, value)) for name, value in passing.fields))]

    def _encoded(self, name: bytes, value: bytes) -> bytes:
        return base64.b64encode(value).rstrip(b"=") if name.endswith(b"-bin") else value


anything_as_trailers = Mutant(library=FaultyLibrary(context=_AnythingAsTrailers))
late_initial_ignored = Mutant(library=FaultyLibrary(context=_LateInitialIgnored))
late_initial_is_a_value_error = Mutant(library=FaultyLibrary(context=_LateInitialIsAValueError))
trailers_appended = Mutant(library=FaultyLibrary(context=_TrailersAppended))
abort_clears_trailers = Mutant(library=FaultyLibrary(context=_AbortClearsTrailers))
binary_padded = Mutant(library=FaultyLibrary(frames=Padded))
binary_encoded_twice = Mutant(library=FaultyLibrary(frames=BinaryAsBase64Text))
headers_with_the_next_frame = Mutant(library=FaultyLibrary(frames=HeadersWithTheNextFrame))
invalid_metadata_stalls = Mutant(library=FaultyLibrary(frames=InvalidMetadataIsForgotten))
connection_fields_reset_the_stream = Mutant(library=FaultyLibrary(frames=ConnectionFieldsResetTheStream))


def fault(mutant: str, **caught_by: str) -> Fault:
    """A fault noticed by functions of the file about response metadata."""
    named = {f"grpc_metadata_response/{name}": rows for name, rows in caught_by.items()}
    return Fault(mutant, caught_by=named, protocols=WIRE)


def fault_of_invalid(mutant: str, **caught_by: str) -> Fault:
    """A fault noticed by functions of the file about metadata that a handler may not give."""
    named = {f"grpc_metadata_invalid/{name}": rows for name, rows in caught_by.items()}
    return Fault(mutant, caught_by=named, protocols=WIRE)


FAULTS = (
    fault("binary_padded", binary_metadata_is_sent_without_padding="GRPC-MD-07"),
    fault(
        "binary_encoded_twice",
        binary_metadata_is_sent_without_padding="GRPC-MD-07",
        metadata_arrives_in_its_block="GRPC-MD-21",
    ),
    fault("last_value_of_a_key", metadata_arrives_in_its_block="GRPC-MD-21"),
    fault(
        "headers_with_the_next_frame",
        initial_metadata_goes_out_at_once="GRPC-MD-22",
        initial_metadata_stays_initial_before_a_failure="GRPC-MD-23",
    ),
    fault(
        "metadata_of_tuples_only",
        initial_metadata_in_any_shape="GRPC-MD-24",
        trailing_metadata_in_each_shape="GRPC-MD-24",
    ),
    fault("bytes_in_python_syntax", bytes_under_text_key_are_sent_as_text="GRPC-MD-28"),
    fault("grpc_prefix_dropped", application_keys_may_begin_with_grpc="GRPC-MD-29"),
    fault("late_initial_ignored", late_initial_metadata_is_a_usage_error="GRPC-MD-31"),
    fault("late_initial_is_a_value_error", late_initial_metadata_is_a_usage_error="GRPC-MD-31"),
    fault(
        "trailers_appended",
        trailing_metadata_is_replaced="GRPC-MD-32",
        abort_and_earlier_trailing_metadata="GRPC-MD-33",
    ),
    fault("abort_clears_trailers", abort_and_earlier_trailing_metadata="GRPC-MD-33"),
    fault_of_invalid("anything_as_trailers", misshapen_trailing_metadata_is_a_type_error="GRPC-MD-25"),
    fault_of_invalid("invalid_metadata_dropped", invalid_metadata_is_internal="GRPC-MD-26"),
    fault_of_invalid("invalid_metadata_stalls", invalid_metadata_is_internal="GRPC-MD-26"),
    fault_of_invalid("bytes_like_values_sent", wrong_type_under_binary_key_ends_the_call="GRPC-MD-27"),
    fault_of_invalid("connection_fields_reset_the_stream", connection_fields_are_not_sent="GRPC-MD-30"),
    Fault(
        "values_cut_at_4k",
        caught_by={"grpc_metadata_limits/large_response_metadata_arrives": "GRPC-MD-34"},
        protocols=WIRE,
    ),
    Fault(
        "at_most_64_fields_sent",
        caught_by={"grpc_metadata_limits/large_response_metadata_arrives": "GRPC-MD-34"},
        protocols=WIRE,
    ),
)
