"""Faults of message framing and of size limits."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

from pytest_grpc_conformance.servers.base import RunningServer, ServerSetup
from pytest_grpc_conformance.wire.frames import ErrorCode, Flag, Kind, message
from tests.faults.faulty_library import FaultyLibrary
from tests.faults.frame_proxy import FrameFault, FrameProxy, Passing
from tests.faults.message_layer import INTERNAL, MessageLayer, Refused, Request
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault


def layer(faulty: Callable[[], FrameFault]) -> Mutant:
    return Mutant(library=FaultyLibrary(frames=faulty))


def with_options(change: Callable[[str, Any], Any]) -> Mutant:
    """A server whose options have other values."""

    def changed(setup: ServerSetup) -> ServerSetup:
        return dataclasses.replace(setup, options=[(key, change(key, value)) for key, value in setup.options])

    return Mutant(library=FaultyLibrary(setup=changed))


strict = layer(MessageLayer)
"""No fault: what the faulty layers would be without theirs."""


class PrefixInOneFrame(MessageLayer):
    """Takes the end of a DATA frame inside a length prefix for the end of the request."""

    def content(self, request: Request, passing: Passing) -> bytes:
        content = super().content(request, passing)
        if content and not request.body and len(request.prefix + content) < 5:
            raise Refused(INTERNAL)
        return content


class EmptyDataEnds(MessageLayer):
    """Takes an empty DATA frame for the end of the request."""

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        empty = passing.kind == Kind.DATA and not passing.payload
        return super().from_client(passing.but(flags=passing.flags | Flag.END_STREAM) if empty else passing)


class EmptyMessageDropped(MessageLayer):
    """Takes a message of zero length for none."""

    def message_begins(self, request: Request, flag: int, length: int) -> bytes:
        return super().message_begins(request, flag, length) if length else b""


class PaddingAsContent(MessageLayer):
    """Takes padding, and its length, for content."""

    def content(self, request: Request, passing: Passing) -> bytes:
        return passing.payload


class PaddingUncredited(MessageLayer):
    """Counts padding against the windows and never gives it back."""

    def credit(self, request: Request, octets: int) -> None:
        pass


class PaddingUnchecked(MessageLayer):
    """Takes a frame whose padding is too long for one of padding only."""

    def connection_error(self, code: ErrorCode) -> None:
        pass


class NoMessageIsEmpty(MessageLayer):
    """Takes a request without a message for one with an empty message."""

    def without_message(self, request: Request) -> bytes:
        return message(b"")


class CardinalityInternal(MessageLayer):
    """Says INTERNAL where the number of messages is wrong."""

    def refuse(self, request: Request, refused: Refused) -> Sequence[Passing]:
        return super().refuse(request, Refused(INTERNAL))


class TruncatedIsFilled(MessageLayer):
    """Takes a message that breaks off for a whole one."""

    def truncated(self, request: Request) -> bytes:
        lacking = b"\0" * (5 - len(request.prefix)) if request.prefix else b""
        return lacking + bytes(request.body)


class CleanEndForHandler(MessageLayer):
    """Tells the client of a message that breaks off, and the handler that the request is over.

    grpcio's request iterator ends cleanly on RST_STREAM too, so that this row has no layer without a fault.
    """

    def refuse(self, request: Request, refused: Refused) -> Sequence[Passing]:
        super().refuse(request, refused)
        return [Passing(Kind.DATA, Flag.END_STREAM, request.stream)]


class RestIgnored(MessageLayer):
    """Takes one message, and ignores what follows."""

    def content(self, request: Request, passing: Passing) -> bytes:
        content = super().content(request, passing)
        whole = 5 + int.from_bytes(content[1:5], "big")
        return content if request.is_stream or request.messages or not content else content[:whole]


class FlagMasked(MessageLayer):
    """Looks at the lowest bit of the compressed-flag only."""

    def message_begins(self, request: Request, flag: int, length: int) -> bytes:
        return super().message_begins(request, flag & 1, length)


class WaitsForEndOfStream(FrameFault):
    """Holds a request back until it is complete."""

    def __init__(self) -> None:
        self._held: dict[int, list[Passing]] = {}

    def from_client(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.DATA:
            return [passing]
        held = self._held.setdefault(passing.stream, [])
        held.append(passing)
        return self._held.pop(passing.stream) if passing.ends_stream else []


class NoTrailersInRequests(MessageLayer):
    """Refuses a second header block."""

    def trailers(self, request: Request, passing: Passing) -> Sequence[Passing]:
        raise Refused(INTERNAL)


class LongFrames(FrameFault):
    """Joins DATA frames without regard for the client's SETTINGS_MAX_FRAME_SIZE."""

    def __init__(self) -> None:
        self._held: dict[int, bytes] = {}

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        held = self._held.pop(passing.stream, b"")
        if passing.kind != Kind.DATA:
            return [*([Passing(Kind.DATA, 0, passing.stream, held)] if held else []), passing]
        joined = passing.but(payload=held + passing.payload)
        if len(joined.payload) > 16_384 or passing.ends_stream:
            return [joined]
        self._held[passing.stream] = joined.payload
        return []


class _OctetProxy(FrameProxy):
    """Passes octets on, but ends a connection on which a frame's header comes in pieces."""

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream_port)

        async def back() -> None:
            while octets := await up_reader.read(65_536):
                writer.write(octets)

        returning = asyncio.ensure_future(back())
        try:
            while len(octets := await reader.read(65_536)) >= 9:
                up_writer.write(octets)
        finally:
            returning.cancel()
            with contextlib.suppress(Exception):
                writer.close()
                up_writer.close()


class WholeHeadersOnly(FaultyLibrary):
    """Reads the header of a frame in one piece or not at all."""

    async def start(self, setup: ServerSetup) -> RunningServer:
        running = await super().start(setup)
        return _Behind(running, await _OctetProxy(running.port, FrameFault).start())


class _Behind(RunningServer):
    def __init__(self, running: RunningServer, proxy: FrameProxy) -> None:
        self.port, self.native = proxy.port, running.native
        self._running, self._proxy = running, proxy

    async def stop(self, grace: float | None) -> None:
        await self._running.stop(grace)
        await self._proxy.close()


def lenient(handler: Any, path: str) -> Any:
    """A handler that gets the octets as they are when the deserializer rejects them."""
    deserializer = handler.request_deserializer
    if deserializer is None:
        return handler

    def deserialized(octets: bytes) -> Any:
        try:
            return deserializer(octets)
        except Exception:
            return octets

    return handler._replace(request_deserializer=deserialized)


RECEIVE_LIMIT = "grpc.max_receive_message_length"
SEND_LIMIT = "grpc.max_send_message_length"


def without_limits(setup: ServerSetup) -> ServerSetup:
    kept = [(key, value) for key, value in setup.options if key not in (RECEIVE_LIMIT, SEND_LIMIT)]
    return dataclasses.replace(setup, options=[*kept, (RECEIVE_LIMIT, -1), (SEND_LIMIT, -1)])


prefix_in_one_frame = layer(PrefixInOneFrame)
empty_data_ends = layer(EmptyDataEnds)
empty_message_dropped = layer(EmptyMessageDropped)
padding_as_content = layer(PaddingAsContent)
padding_uncredited = layer(PaddingUncredited)
padding_unchecked = layer(PaddingUnchecked)
no_message_is_empty = layer(NoMessageIsEmpty)
cardinality_internal = layer(CardinalityInternal)
truncated_is_filled = layer(TruncatedIsFilled)
clean_end_for_handler = layer(CleanEndForHandler)
rest_ignored = layer(RestIgnored)
flag_masked = layer(FlagMasked)
waits_for_end_of_stream = layer(WaitsForEndOfStream)
no_trailers_in_requests = layer(NoTrailersInRequests)
long_frames = layer(LongFrames)
whole_headers_only = Mutant(library=WholeHeadersOnly())
lenient_deserializer = Mutant(library=FaultyLibrary(handler=lenient))
limit_off_by_one = with_options(lambda key, value: value + 1 if key == RECEIVE_LIMIT and value > 0 else value)
no_limits = Mutant(library=FaultyLibrary(setup=without_limits))


def _fault(mutant: str, nightly: bool = False, **rows: str) -> Fault:
    caught_by = {f"{_file(row)}/{function}": f"GRPC-MSG-{row}" for function, row in rows.items()}
    return Fault(mutant, caught_by=caught_by, protocols=WIRE, nightly=nightly)


def _file(row: str) -> str:
    return "grpc_message_sizes" if row in ("23", "24", "25", "26") else "grpc_messages"


FAULTS = (
    _fault("prefix_in_one_frame", message_may_be_split_anywhere="01"),
    _fault("whole_headers_only", request_may_come_octet_by_octet="01"),
    _fault("empty_data_ends", empty_data_frames_are_ignored="02"),
    _fault("empty_message_dropped", messages_in_one_frame_come_one_by_one="03", empty_message_is_a_message="07"),
    _fault("padding_as_content", padding_is_no_content="04"),
    _fault("padding_uncredited", padding_is_credited="05"),
    _fault("padding_unchecked", padding_longer_than_its_frame_is_refused="06"),
    _fault("no_message_is_empty", no_request_message_fails="08"),
    _fault("cardinality_internal", no_request_message_is_unimplemented="08", second_message_is_unimplemented="09"),
    _fault(
        "truncated_is_filled",
        truncated_request_fails="10",
        truncated_request_stream_fails="10",
        truncated_last_message_is_no_clean_end="12",
    ),
    _fault("clean_end_for_handler", truncated_last_message_is_no_clean_end="12"),
    _fault("rest_ignored", second_message_is_unimplemented="09", octets_after_the_message_fail="11"),
    _fault("flag_masked", unknown_flag_is_internal="13"),
    _fault("limit_off_by_one", receive_limit="23"),
    _fault("no_limits", receive_limit="23", too_long_message_is_refused_by_its_prefix="24", send_limit="25"),
    _fault("no_limits", nightly=True, too_long_message_is_not_buffered="24"),
    _fault("long_frames", responses_arrive_intact="26"),
    _fault("waits_for_end_of_stream", handler_starts_before_end_of_stream="33"),
    _fault("no_trailers_in_requests", trailing_headers_end_the_request="34"),
    _fault("lenient_deserializer", rejected_request_fails="35"),
)
