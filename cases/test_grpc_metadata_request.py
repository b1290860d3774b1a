"""Request metadata: what reaches a handler of the fields that a client sends, and what malformed fields cost."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Sequence
from typing import Any

import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, Handler, LibraryTarget, bidi, path, server_streaming, unary
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.frames import ErrorCode

Pair = tuple[str, "str | bytes"]
KINDS = pytest.mark.parametrize("kind", ["unary", "bidi"])
"""Some libraries serve streams of requests by other means than single requests."""
BEYOND_ASCII = pytest.mark.parametrize("value", [b"a\x80b", b"a\xffb", b"a\tb"], ids=["0x80", "0xff", "tab"])
NO_TARPIT = (("grpc.http.tarpit", 0),)
"""gRPC core answers a call that it refuses after a random part of a second, unless told not to."""
ALL_OF_KEY = string.digits + string.ascii_lowercase + "._-"
ALL_OF_VALUE = "<" + "".join(map(chr, range(0x20, 0x7F))) + ">"
"""All characters that the grammar allows; blanks at either end may be stripped, so that none stands there."""


def noting(target: LibraryTarget, kind: str = "unary") -> Handler:
    """A handler that notes its metadata, pair by pair."""

    def note(context: Any) -> None:
        target.seen.note("metadata", [(key, value) for key, value in context.invocation_metadata()])

    async def one(request: bytes, context: Any) -> bytes:
        note(context)
        return b""

    async def many(requests: Any, context: Any) -> Any:
        note(context)
        yield b""

    return bidi(many) if kind == "bidi" else unary(one)


def shown(target: LibraryTarget, metadata: Sequence[Pair], key: str, kind: str = "unary") -> list[Any]:
    """The values that a handler is shown under a key; the call that brings them must end with OK."""
    connection = target.serve({"Notes": noting(target, kind)}, options=NO_TARPIT).connect()
    asserts.ended_with(asserts.answered(connection, connection.call(path("Notes"), metadata=metadata)), "OK")
    return [value for name, value in asserts.seen(target, "metadata")[0] if name == key]


def told(target: LibraryTarget, metadata: Sequence[Pair], **options: Any) -> tuple[int | None, list[Any]]:
    """How a raw call with metadata ended, and the pairs that the handler was shown, for exchanges."""
    connection = target.serve({"Notes": noting(target)}, options=NO_TARPIT).connect()
    answer = connection.unary(path("Notes"), metadata=metadata, **options)
    return answer.status, [pair for pairs in target.seen.values("metadata") for pair in pairs]


def refused(target: LibraryTarget, field: Pair) -> Answer:
    """The answer to a call with a malformed field, which must fail without its handler; the server serves on.

    The connection may end (RFC 9113, section 5.4: a stream error may be treated as a connection error).
    """
    served = target.serve({"Notes": noting(target), "Echo": ECHO}, options=NO_TARPIT)
    connection = served.connect()
    answer = asserts.answered(connection, connection.call(path("Notes"), metadata=[field]))
    asserts.fails(answer, besides=("closed",))
    asserts.still_serves(served.connect() if connection.closed else connection, path("Echo"))
    asserts.equal("what the handler saw of a malformed request", [], target.seen.values("metadata"))
    return answer


@requirement("GRPC-MD-01")
@KINDS
def test_ascii_metadata_arrives_unchanged(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST hand on ASCII metadata with keys and values unchanged."""
    observed = shown(grpc_library, [(ALL_OF_KEY, ALL_OF_VALUE)], ALL_OF_KEY, kind)
    asserts.equal("the value of a key", [ALL_OF_VALUE], observed)


@requirement("GRPC-MD-01", "GRPC-MD-04")
def test_stock_metadata_arrives_unchanged(grpc_library: LibraryTarget) -> None:
    """The server MUST hand on what a stock client sends: text as str, and octets as bytes."""
    sent = ((ALL_OF_KEY, ALL_OF_VALUE), ("all-bin", bytes(range(256))))
    served = grpc_library.serve({"Notes": noting(grpc_library)})
    asserts.equal("the status", "OK", served.call("Notes", metadata=sent).code)
    keys = {key for key, _ in sent}
    observed = sorted(pair for pair in asserts.seen(grpc_library, "metadata")[0] if pair[0] in keys)
    asserts.equal("the metadata", sorted(sent), observed)


@requirement("GRPC-MD-02")
@KINDS
def test_repeated_key_keeps_its_values(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST deliver all values of a repeated key, in the order in which they were sent."""
    sent = [("many", "2"), ("other", "x"), ("many", "1"), ("many", "3")]
    # Equal names may be joined with commas (gRPC over HTTP/2, "Requests").
    asserts.equal("the values of a repeated key", "2,1,3", ",".join(shown(grpc_library, sent, "many", kind)))


@requirement("GRPC-MD-02")
def test_stock_repeated_key_keeps_its_values(grpc_library: LibraryTarget) -> None:
    """The server MUST deliver all values of a key that a stock client repeats, in order."""
    sent = (("many", "2"), ("many-bin", b"\x02"), ("many", "1"), ("many-bin", b"\x01"))
    served = grpc_library.serve({"Notes": noting(grpc_library)})
    asserts.equal("the status", "OK", served.call("Notes", metadata=sent).code)
    pairs = asserts.seen(grpc_library, "metadata")[0]
    asserts.equal("the text values", "2,1", ",".join(value for key, value in pairs if key == "many"))
    asserts.equal("the binary values", [b"\x02", b"\x01"], [value for key, value in pairs if key == "many-bin"])


@requirement("GRPC-MD-03")
def test_wire_order_across_keys(grpc_library: LibraryTarget) -> None:
    """The server SHOULD keep the order of the wire in the metadata, across different keys too."""
    sent = [("first", "1"), ("second", "2"), ("first", "3")]
    asserts.parity(grpc_library, lambda target: told(target, sent), expected=(0, sent))


@requirement("GRPC-MD-04")
@KINDS
@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (["AQ==", "AQI=", "AQID"], [b"\x01", b"\x01\x02", b"\x01\x02\x03"]),
        (["AQ", "AQI", "AQID"], [b"\x01", b"\x01\x02", b"\x01\x02\x03"]),
        ([""], [b""]),
        (["+/8=", "+/8", "", "/w"], [b"\xfb\xff", b"\xfb\xff", b"", b"\xff"]),
    ],
    ids=["padded", "unpadded", "empty", "repeated"],
)
def test_binary_metadata_is_decoded(
    grpc_library: LibraryTarget, values: list[str], expected: list[bytes], kind: str
) -> None:
    """The server MUST accept `-bin` values that are padded, unpadded, empty or repeated, and give bytes."""
    observed = shown(grpc_library, [("data-bin", value) for value in values], "data-bin", kind)
    asserts.equal("the values under a -bin key", expected, observed)


@requirement("GRPC-MD-05")
@pytest.mark.parametrize("value", ["AQ==,AgM=,BAUG", "AQ,AgM,BAUG"], ids=["padded", "unpadded"])
def test_joined_binary_values_are_split(grpc_library: LibraryTarget, value: str) -> None:
    """The server MUST split a `-bin` field at its commas and decode each item."""
    observed = shown(grpc_library, [("data-bin", value)], "data-bin")
    asserts.equal("the values of a joined -bin field", [b"\x01", b"\x02\x03", b"\x04\x05\x06"], observed)


@requirement("GRPC-MD-06")
@pytest.mark.parametrize(
    "value", ["!!!", "A", "-_8", "AQ ID"], ids=["symbols", "one-character", "url-safe", "inner-blank"]
)
def test_bad_base64_fails_the_call(grpc_library: LibraryTarget, value: str) -> None:
    """The server SHOULD fail a call with a `-bin` value that is not base64, not drop the value."""
    asserts.parity(grpc_library, lambda target: told(target, [("data-bin", value)]), expected=(13, []))


@requirement("GRPC-MD-08")
@BEYOND_ASCII
def test_octets_beyond_ascii_do_not_fail_the_call(grpc_library: LibraryTarget, value: bytes) -> None:
    """The server MUST NOT fail a call for octets that HTTP allows in a value and gRPC does not."""
    shown(grpc_library, [("key", value)], "key")


@requirement("GRPC-MD-09")
@BEYOND_ASCII
def test_octets_beyond_ascii_can_be_echoed(grpc_library: LibraryTarget, value: bytes) -> None:
    """The server MUST accept back, as initial and trailing metadata, the values that it hands on."""

    async def echoes(request: bytes, context: Any) -> bytes:
        given = tuple((key, text) for key, text in context.invocation_metadata() if key == "key")
        await context.send_initial_metadata(given)
        context.set_trailing_metadata(given)
        return b""

    connection = grpc_library.serve({"Echoes": unary(echoes)}).connect()
    answer = asserts.answered(connection, connection.call(path("Echoes"), metadata=[("key", value)]))
    asserts.ended_with(answer, "OK")


@requirement("GRPC-MD-10")
@pytest.mark.parametrize("octet", [b"\0", b"\r", b"\n"], ids=["nul", "cr", "lf"])
def test_forbidden_octet_makes_a_request_malformed(grpc_library: LibraryTarget, octet: bytes) -> None:
    """The server SHOULD refuse a request whose value holds NUL, CR or LF, and not call the handler."""
    answer = refused(grpc_library, ("key", b"a" + octet + b"b"))
    if answer.trailers is None and answer.reset is not None:
        asserts.equal("the code of RST_STREAM", ErrorCode.PROTOCOL_ERROR, answer.reset)


@requirement("GRPC-MD-11")
@pytest.mark.parametrize(
    "field",
    [("Key", "v"), ("a key", "v"), ("key", b"a\0b"), ("connection", "close")],
    ids=["upper-case", "blank-in-name", "nul-in-value", "connection-field"],
)
def test_malformed_field_costs_only_its_stream(grpc_library: LibraryTarget, field: Pair) -> None:
    """The server SHOULD let a malformed field cost its own stream, and no other one on the connection."""
    gate = asyncio.Event()

    async def waits(request: bytes, context: Any) -> Any:
        yield b"before"
        await gate.wait()
        yield b"after"

    async def open_gate() -> None:
        gate.set()

    served = grpc_library.serve({"Waits": server_streaming(waits), "Echo": ECHO}, options=NO_TARPIT)
    connection = served.connect()
    other = connection.call(path("Waits"))
    with asserts.owed("a first message"):
        connection.wait_messages(other, 1)
    asserts.answered(connection, connection.call(path("Echo"), metadata=[field]))
    grpc_library.run(open_gate())
    answer = asserts.answered(connection, other)
    asserts.true("the other stream goes on to its end", not answer.closed, str(answer))
    asserts.ended_with(answer, "OK")
    asserts.equal("the messages of the other stream", (b"before", b"after"), answer.payloads)
    asserts.still_serves(connection, path("Echo"))


@requirement("GRPC-MD-12")
@pytest.mark.parametrize("name", ["Key", "x-cUstom", "DATA-BIN"], ids=["first", "inner", "all"])
def test_upper_case_name_is_refused(grpc_library: LibraryTarget, name: str) -> None:
    """The server MUST refuse a request with an upper-case field name, and not call the handler."""
    refused(grpc_library, (name, "AQID"))


@requirement("GRPC-MD-13")
@pytest.mark.parametrize("name", ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"])
def test_connection_field_makes_a_request_malformed(grpc_library: LibraryTarget, name: str) -> None:
    """The server SHOULD refuse a request with a connection-specific field as malformed."""
    refused(grpc_library, (name, "x"))


@requirement("GRPC-MD-14")
def test_fields_of_the_protocol_are_no_metadata(grpc_library: LibraryTarget) -> None:
    """The server MUST leave the protocol's own fields out of the metadata, and keep all others."""
    own = [("grpc-encoding", "identity"), ("grpc-accept-encoding", "identity,gzip")]
    others = [("grpc-custom", "v"), ("plain", "v"), ("user-agent", "agent")]

    def exchange(target: LibraryTarget) -> Any:
        status, pairs = told(target, [*own, *others], timeout="100S")
        return status, sorted(pairs)

    asserts.parity(grpc_library, exchange, expected=(0, others))


@requirement("GRPC-MD-15")
@pytest.mark.parametrize("key", ["grpc-status", "grpc-tags-bin", "grpc-trace-bin"])
def test_reserved_key_is_not_shown(grpc_library: LibraryTarget, key: str) -> None:
    """The server SHOULD NOT show the handler fields that gRPC keeps for itself."""
    value = "0" if key == "grpc-status" else "AQID"
    asserts.parity(grpc_library, lambda target: told(target, [(key, value)]), expected=(0, []))


@requirement("GRPC-MD-16")
def test_metadata_is_a_tuple_of_named_tuples(grpc_library: LibraryTarget) -> None:
    """The server MUST give metadata as a tuple of named tuples: `key`, and `value` as str or bytes."""
    sent = (("data-bin", b"\0\xff"), ("text", "value"))

    def exchange(target: LibraryTarget) -> Any:
        async def notes(request: bytes, context: Any) -> bytes:
            given = context.invocation_metadata()
            target.seen.note("type", type(given).__name__)
            for one in given:
                fields = getattr(one, "_fields", None)
                target.seen.note("entry", (isinstance(one, tuple), fields, one[0], one[1]))
            return b""

        target.serve({"Notes": unary(notes)}).call("Notes", metadata=sent)
        entries = [entry for entry in target.seen.values("entry") if entry[2] in ("data-bin", "text")]
        return target.seen.values("type"), sorted(entries)

    named = [(True, ("key", "value"), key, value) for key, value in sent]
    asserts.parity(grpc_library, exchange, expected=(["tuple"], named))
