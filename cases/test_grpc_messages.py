"""Messages in DATA frames: how they are split, and padded, and what is no message."""

from __future__ import annotations

import itertools
import time
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import (
    ECHO,
    LibraryTarget,
    Served,
    echoing,
    path,
)
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import request_fields
from pytest_grpc_conformance.wire.frames import HEADER_OCTETS, ErrorCode, Flag, Kind, frame, message

PAYLOAD = b"seventy"
WHOLE = message(PAYLOAD)
"""A message of 12 octets."""
PADDING = 255

kinds = pytest.mark.parametrize("method", ["Unary", "Bidi"], ids=["unary", "bidi"])
request_streams = pytest.mark.parametrize("method", ["ClientStream", "Bidi"], ids=["client-stream", "bidi"])


def serve(target: LibraryTarget, **options: Any) -> Served:
    """Handlers of all kinds that note what they get, and ``Later``, which notes nothing."""
    return target.serve({**echoing(target.seen), "Later": ECHO}, **options)


def echoed(answer: Answer, *payloads: bytes) -> None:
    """The answer is OK with these messages."""
    asserts.ended_with(answer, "OK")
    asserts.equal("what the method gave back", payloads, answer.payloads)


def failed_at_once(what: str, answer: Answer) -> None:
    """The call has ended, and not with OK."""
    asserts.true(f"{what}: the call ends", answer.ended, str(answer))
    asserts.fails(answer)


def got(target: LibraryTarget) -> list[bytes]:
    """The requests that handlers have noted so far."""
    return target.seen.values("message")


TWO_CUTS = [(WHOLE[:a], WHOLE[a:b], WHOLE[b:]) for a, b in itertools.combinations(range(1, len(WHOLE)), 2)]
OCTETS = [tuple(WHOLE[at : at + 1] for at in range(len(WHOLE)))]


@requirement("GRPC-MSG-01")
@kinds
@pytest.mark.parametrize("splits", [TWO_CUTS, OCTETS], ids=["two-cuts", "octets"])
def test_message_may_be_split_anywhere(
    grpc_library: LibraryTarget, method: str, splits: list[tuple[bytes, ...]]
) -> None:
    """The server MUST take a request message that DATA frames split at any octet boundary."""
    connection = serve(grpc_library).connect()
    for parts in splits:
        stream = connection.start(path(method))
        for part in parts[:-1]:
            connection.data(stream, part)
        connection.data(stream, parts[-1], end_stream=True)
        echoed(asserts.answered(connection, stream), PAYLOAD)


@requirement("GRPC-MSG-01")
@kinds
def test_request_may_come_octet_by_octet(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST take a request that arrives in TCP segments of one octet."""
    connection = serve(grpc_library).connect()
    with asserts.owed("the acknowledgement of a PING"):
        connection.fence()
    stream = connection.new_stream()
    block = connection.block(request_fields(path(method)))
    octets = frame(Kind.HEADERS, Flag.END_HEADERS, stream, block) + frame(Kind.DATA, Flag.END_STREAM, stream, WHOLE)
    for at in range(len(octets)):
        connection.send(octets[at : at + 1])
        if at < 2 * HEADER_OCTETS:
            time.sleep(0.001)  # A server that keeps up reads each of these by itself.
    echoed(asserts.answered(connection, stream), PAYLOAD)


@requirement("GRPC-MSG-02")
@kinds
def test_empty_data_frames_are_ignored(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST ignore empty DATA frames around parts of a message, but for their END_STREAM."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    for part in (b"", WHOLE[:3], b"", b"", WHOLE[3:7], b"", WHOLE[7:], b""):
        connection.data(stream, part)
    connection.data(stream, b"", end_stream=True)
    echoed(asserts.answered(connection, stream), PAYLOAD)


@requirement("GRPC-MSG-03")
@request_streams
def test_messages_in_one_frame_come_one_by_one(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST deliver several messages in one DATA frame one by one, an empty one too."""
    payloads = [b"one", b"", b"two", b"three"]
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    connection.data(stream, b"".join(message(payload) for payload in payloads), end_stream=True)
    asserts.ended_with(asserts.answered(connection, stream), "OK")
    asserts.equal("the messages in the handler", payloads, got(grpc_library))


@requirement("GRPC-MSG-04")
@kinds
@pytest.mark.parametrize("padding", [0, 3, 255], ids=lambda padding: f"padding={padding}")
def test_padding_is_no_content(grpc_library: LibraryTarget, method: str, padding: int) -> None:
    """The server MUST take padded DATA frames, one of padding only too, without their padding."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    connection.padded(stream, [WHOLE[:6], b"", WHOLE[6:]], padding, end_stream=True)
    echoed(asserts.answered(connection, stream), PAYLOAD)


@requirement("GRPC-MSG-05")
def test_padding_is_credited(grpc_library: LibraryTarget) -> None:
    """The server MUST credit padding back: padding of more than its windows, and one message, come through."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path("Unary"))
    with asserts.owed("the settings of the server"):
        connection.fence()
    size = 2 + PADDING
    frames = min(max(12_000, connection.room(stream) // size + 1_000), 40_000)
    octets = message(bytes(frames - 5))
    parts = [octets[at : at + 1] for at in range(frames)]
    while parts and not connection.received.ended(stream):
        with asserts.owed("window for what was sent as padding"):
            connection.wait(lambda: connection.room(stream) >= size or connection.received.ended(stream), "a window")
        now = parts[: min(connection.room(stream) // size, 200)]
        parts = parts[len(now) :]
        connection.padded(stream, now, PADDING, end_stream=not parts)
    echoed(asserts.answered(connection, stream), octets[5:])


@requirement("GRPC-MSG-06")
@pytest.mark.parametrize("padding", [5, 255], ids=["all-of-the-frame", "beyond-the-frame"])
def test_padding_longer_than_its_frame_is_refused(grpc_library: LibraryTarget, padding: int) -> None:
    """The server MUST answer padding of the frame's length or more with PROTOCOL_ERROR."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path("Unary"))
    connection.frame(Kind.DATA, Flag.PADDED, stream, bytes([padding]) + b"four")
    asserts.connection_error(connection, ErrorCode.PROTOCOL_ERROR, probe=path("Later"))


@requirement("GRPC-MSG-07")
@pytest.mark.parametrize(
    "method", ["Unary", "ServerStream", "ClientStream", "Bidi"], ids=["unary", "server-stream", "client-stream", "bidi"]
)
def test_empty_message_is_a_message(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST take and send a message of zero length as a message like any other."""
    served = serve(grpc_library)
    connection = served.connect()
    answer = asserts.answered(connection, connection.call(path(method), b""))
    echoed(answer, b"")
    asserts.equal("the octets of the response", (message(b""), b""), (answer.data[:5], answer.data[5:]))
    asserts.equal("the messages in the handler", [b""], got(grpc_library))
    request = [b""] if method in ("ClientStream", "Bidi") else b""
    outcome = served.call(method, request)
    asserts.equal("the stock call", ("OK", (b"",)), (outcome.code, outcome.messages))


@requirement("GRPC-MSG-08")
def test_no_request_message_fails(grpc_library: LibraryTarget) -> None:
    """The server MUST end a unary or server-streaming call without a message promptly, not with OK."""
    connection = serve(grpc_library).connect()
    streams = {}
    for method in ("Unary", "ServerStream"):
        streams[f"{method}, END_STREAM on HEADERS"] = connection.start(path(method), end_stream=True)
        streams[f"{method}, END_STREAM on an empty DATA frame"] = stream = connection.start(path(method))
        connection.data(stream, b"", end_stream=True)
    answers = asserts.settled(connection, list(streams.values()), path("Later"))
    for what, answer in zip(streams, answers, strict=True):
        failed_at_once(what, answer)
    asserts.equal("the messages in the handlers", [], got(grpc_library))


@requirement("GRPC-MSG-08")
def test_no_request_message_is_unimplemented(grpc_library: LibraryTarget) -> None:
    """The server MUST end a unary call without a message with UNIMPLEMENTED, as the status table says."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path("Unary"), end_stream=True)
    asserts.ended_with(asserts.settled(connection, [stream], path("Later"))[0], "UNIMPLEMENTED")


@requirement("GRPC-MSG-09")
@pytest.mark.parametrize("method", ["Unary", "ServerStream"], ids=["unary", "server-stream"])
def test_second_message_is_unimplemented(grpc_library: LibraryTarget, method: str) -> None:
    """The server SHOULD end a call with UNIMPLEMENTED when a second message follows the only one."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    connection.data(stream, message(b"one") + message(b"two"), end_stream=True)
    asserts.ended_with(asserts.answered(connection, stream), "UNIMPLEMENTED")


CUTS = {"inside the prefix": 3, "after the prefix": 5, "inside the body": 8}


@requirement("GRPC-MSG-10")
def test_truncated_request_fails(grpc_library: LibraryTarget) -> None:
    """The server MUST end a call promptly, not with OK, when its only message breaks off."""
    connection = serve(grpc_library).connect()
    streams = {}
    for method, (where, cut) in itertools.product(("Unary", "ServerStream"), CUTS.items()):
        streams[f"{method}, cut {where}"] = stream = connection.start(path(method))
        connection.data(stream, WHOLE[:cut], end_stream=True)
    answers = asserts.settled(connection, list(streams.values()), path("Later"))
    for what, answer in zip(streams, answers, strict=True):
        failed_at_once(what, answer)
    asserts.equal("the messages in the handlers", [], got(grpc_library))


@requirement("GRPC-MSG-10")
@request_streams
@pytest.mark.parametrize("cut", CUTS.values(), ids=["prefix", "end-of-prefix", "body"])
def test_truncated_request_stream_fails(grpc_library: LibraryTarget, method: str, cut: int) -> None:
    """The server MUST end a call, not with OK, when the first message of a request stream breaks off."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    connection.data(stream, WHOLE[:cut], end_stream=True)
    failed_at_once(f"{method}, cut after {cut} octets", asserts.settled(connection, [stream], path("Later"))[0])
    asserts.equal("the messages in the handler", [], got(grpc_library))


@requirement("GRPC-MSG-11")
@pytest.mark.parametrize("method", ["Unary", "ServerStream"], ids=["unary", "server-stream"])
@pytest.mark.parametrize("rest", [b"\0", message(b"two")[:5]], ids=["octet", "prefix"])
def test_octets_after_the_message_fail(grpc_library: LibraryTarget, method: str, rest: bytes) -> None:
    """The server MUST take octets after the one message that are no message for an error."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    connection.data(stream, WHOLE + rest, end_stream=True)
    asserts.fails(asserts.answered(connection, stream))


@requirement("GRPC-MSG-12")
@request_streams
def test_truncated_last_message_is_no_clean_end(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST take a truncated last message for an error, and not for a clean end of the stream."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    connection.data(stream, message(b"one"))
    asserts.seen(grpc_library, "message")
    connection.data(stream, WHOLE[:8], end_stream=True)
    answer = asserts.answered(connection, stream)
    asserts.fails(answer)
    asserts.still_serves(connection, path("Later"))
    asserts.equal("the messages in the handler", [b"one"], got(grpc_library))
    asserts.equal("clean ends in the handler", [], grpc_library.seen.values("end"))


@requirement("GRPC-MSG-13")
@kinds
@pytest.mark.parametrize("flag", [2, 128, 255], ids=lambda flag: f"flag={flag}")
def test_unknown_flag_is_internal(grpc_library: LibraryTarget, method: str, flag: int) -> None:
    """The server MUST end a call with INTERNAL whose compressed-flag is neither 0 nor 1."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    connection.data(stream, message(PAYLOAD, flag=flag), end_stream=True)
    asserts.ended_with(asserts.settled(connection, [stream], path("Later"))[0], "INTERNAL")


@requirement("GRPC-MSG-33")
def test_handler_starts_before_end_of_stream(grpc_library: LibraryTarget) -> None:
    """The server SHOULD start a handler once its message is complete, without waiting for END_STREAM."""

    def exchange(target: LibraryTarget) -> Any:
        connection = serve(target).connect()
        # A server that waits for END_STREAM ends the calls at their deadline.
        streams = [connection.start(path(method), timeout="1S") for method in ("Unary", "ServerStream")]
        for stream in streams:
            connection.data(stream, WHOLE)
        answers = [connection.answer(stream) for stream in streams]
        return [(answer.status, answer.payloads) for answer in answers]

    asserts.parity(grpc_library, exchange, expected=[(0, (PAYLOAD,))] * 2)


@requirement("GRPC-MSG-34")
@kinds
def test_trailing_headers_end_the_request(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST take END_STREAM on a trailing HEADERS block for the end of the request."""
    connection = serve(grpc_library).connect()
    stream = connection.start(path(method))
    connection.data(stream, WHOLE)
    connection.headers(stream, [("x-trailer", "1")], end_stream=True)
    echoed(asserts.answered(connection, stream), PAYLOAD)


def rejects(request: bytes) -> bytes:
    raise ValueError("these octets are no request")


@requirement("GRPC-MSG-35")
@pytest.mark.parametrize("method", ["Unary", "ServerStream", "Bidi"], ids=["unary", "server-stream", "bidi"])
def test_rejected_request_fails(grpc_library: LibraryTarget, method: str) -> None:
    """The server MUST end a call with INTERNAL, or UNKNOWN as grpcio does, when its bytes are rejected."""
    noting: dict[str, Any] = echoing(grpc_library.seen)
    served = grpc_library.serve(
        {
            "Unary": grpc.unary_unary_rpc_method_handler(noting["Unary"].unary_unary, rejects),
            "ServerStream": grpc.unary_stream_rpc_method_handler(noting["ServerStream"].unary_stream, rejects),
            "Bidi": grpc.stream_stream_rpc_method_handler(noting["Bidi"].stream_stream, rejects),
        }
    )
    outcome = served.call(method, [b"x"] if method == "Bidi" else b"x")
    grpc_library.transcript.note("case", f"of the two codes that the texts give, the server took {outcome.code}")
    asserts.true("the status is INTERNAL or UNKNOWN", outcome.code in ("INTERNAL", "UNKNOWN"), str(outcome))
    asserts.equal("the messages in the handler", [], got(grpc_library))
