"""Request headers: what a gRPC request must carry, what it may carry, and what makes it none."""

from __future__ import annotations

import dataclasses
from typing import Any

import grpc
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import LibraryTarget, Served, path, server_streaming, unary
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import Fields, RawConnection, request_fields
from pytest_grpc_conformance.wire.frames import message

ECHOES = path("Echo")
BODY = b"request"
NO_TARPIT = (("grpc.http.tarpit", 0),)
"""grpcio delays the refusal of malformed headers by up to a second, unless told not to."""
PLAIN = request_fields(ECHOES)
PSEUDO, REGULAR = PLAIN[:4], PLAIN[4:]


def serve(target: LibraryTarget) -> Served:
    """A server that echoes, and notes the requests that reach its handler."""

    async def echo(request: bytes, context: Any) -> bytes:
        target.seen.note("called", request)
        return request

    return target.serve({"Echo": unary(echo)}, options=NO_TARPIT)


def fields_with(name: str, value: str | bytes | None) -> Fields:
    """The fields of a plain request with another value of one of them, or without it (``None``)."""
    return [(key, at if key != name else value) for key, at in PLAIN if key != name or value is not None]  # type: ignore[misc]


def ask(connection: RawConnection, fields: Fields) -> Answer:
    """The answer to a whole request with these fields and one message."""
    stream = connection.start("", fields=fields)
    connection.data(stream, message(BODY), end_stream=True)
    return asserts.answered(connection, stream)


def served(answer: Answer) -> None:
    """The request reached the method."""
    asserts.ended_with(answer, "OK")
    asserts.equal("the echoed messages", (BODY,), answer.payloads)


def calls(target: LibraryTarget) -> int:
    """How often the handler got the request."""
    return target.seen.values("called").count(BODY)


def not_called(target: LibraryTarget, server: Served) -> None:
    """No handler got the request: a later call on another connection has been served, and the request has not."""
    asserts.still_serves(server.connect(), ECHOES)
    asserts.equal("the number of the handler's calls", 0, calls(target))


def refused(target: LibraryTarget, fields: Fields) -> None:
    """A request with these fields fails, alone or with its connection, which both are legal (RFC 9113, section 5.4.1);
    the handler is not called."""
    server = serve(target)
    answer = ask(server.connect(), fields)
    asserts.fails(answer, besides=("closed",))
    not_called(target, server)


ORDERS = {
    "as_usual": PLAIN,
    "reversed": [*reversed(PSEUDO), *reversed(REGULAR)],
    "custom_first": [*PSEUDO, ("x-first", "1"), ("grpc-timeout", "10S"), *REGULAR],
    "custom_between": [*PSEUDO, REGULAR[1], ("x-between", "1"), ("user-agent", "any/1.0"), REGULAR[0]],
}


@requirement("GRPC-HDR-01")
@pytest.mark.parametrize("fields", ORDERS.values(), ids=ORDERS.keys())
def test_fields_in_any_order(grpc_library: LibraryTarget, fields: Fields) -> None:
    """The server MUST serve a gRPC request in whatever order its regular fields come."""
    served(ask(serve(grpc_library).connect(), fields))


@requirement("GRPC-HDR-02")
@pytest.mark.parametrize("subtype", ["proto", "json", "custom"])
def test_subtype_is_accepted(grpc_library: LibraryTarget, subtype: str) -> None:
    """The server MUST accept a content-type of `application/grpc` with a subtype as gRPC."""
    served(ask(serve(grpc_library).connect(), fields_with("content-type", f"application/grpc+{subtype}")))


@requirement("GRPC-HDR-03")
@pytest.mark.parametrize(
    "value", ["application/json", "text/plain", "application/", "", None], ids=["json", "text", "cut", "empty", "none"]
)
def test_other_content_type_gets_415(grpc_library: LibraryTarget, value: str | None) -> None:
    """The server SHOULD answer a content-type that is not of gRPC, or none, with HTTP status 415."""
    server = serve(grpc_library)
    answer = ask(server.connect(), fields_with("content-type", value))
    asserts.equal(":status of the response", "415", answer.http_status)
    not_called(grpc_library, server)


@requirement("GRPC-HDR-04")
@pytest.mark.parametrize("subtype", ["grpc-web", "grpc-web+proto", "grpcfoo"])
def test_other_type_with_the_prefix_is_no_grpc(grpc_library: LibraryTarget, subtype: str) -> None:
    """The server SHOULD NOT treat `application/grpc-web` or `application/grpcfoo` as gRPC."""
    refused(grpc_library, fields_with("content-type", f"application/{subtype}"))


@requirement("GRPC-HDR-05")
@pytest.mark.parametrize("asked", ["", "+proto"], ids=["plain", "subtype"])
@pytest.mark.parametrize("method", ["Unary", "Stream", "Aborts", "Missing"])
def test_content_type_of_the_response(grpc_library: LibraryTarget, method: str, asked: str) -> None:
    """The server MUST begin the response's content-type with `application/grpc`."""

    async def echo(request: bytes, context: Any) -> bytes:
        return request

    async def stream(request: bytes, context: Any) -> Any:
        yield request

    async def aborts(request: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "nothing here")
        return b""

    handlers = {"Unary": unary(echo), "Stream": server_streaming(stream), "Aborts": unary(aborts)}
    fields = [*request_fields(path(method))[:-1], ("content-type", f"application/grpc{asked}")]
    answer = ask(grpc_library.serve(handlers).connect(), fields)
    ends = {"Aborts": "NOT_FOUND", "Missing": "UNIMPLEMENTED"}
    asserts.ended_with(answer, ends.get(method, "OK"))
    types = answer.blocks[0].values("content-type")
    asserts.true("one content-type, of gRPC", len(types) == 1 and types[0].startswith(b"application/grpc"), str(types))


@requirement("GRPC-HDR-06")
@pytest.mark.parametrize("verb", ["GET", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH", "BREW"], ids=str.lower)
def test_other_verb_does_not_call(grpc_library: LibraryTarget, verb: str) -> None:
    """The server MUST NOT call the handler for an HTTP method other than POST."""
    server = serve(grpc_library)
    ask(server.connect(), fields_with(":method", verb))
    not_called(grpc_library, server)


@requirement("GRPC-HDR-07")
@pytest.mark.parametrize("value", [None, "gzip"], ids=["none", "gzip"])
def test_te_is_required(grpc_library: LibraryTarget, value: str | None) -> None:
    """The server SHOULD refuse a request without `te: trailers`, as grpcio does."""

    def exchange(target: LibraryTarget) -> tuple[str, int]:
        server = serve(target)
        answer = ask(server.connect(), fields_with("te", value))
        asserts.still_serves(server.connect(), ECHOES)
        return "served" if answer.status == 0 else "refused", calls(target)

    asserts.parity(grpc_library, exchange, expected=("refused", 0))


@requirement("GRPC-HDR-08")
@pytest.mark.parametrize("value", ["gzip", "trailers, gzip", "deflate;q=0.5"], ids=["gzip", "both", "weighted"])
def test_other_te_is_malformed(grpc_library: LibraryTarget, value: str) -> None:
    """The server MUST treat a request with a `te` value other than `trailers` as malformed."""
    refused(grpc_library, fields_with("te", value))


@requirement("GRPC-HDR-08")
def test_malformed_te_costs_no_other_request(grpc_library: LibraryTarget) -> None:
    """The server MUST serve what follows a malformed `te` on its connection, or end the connection."""
    connection = serve(grpc_library).connect()
    asserts.fails(ask(connection, fields_with("te", "gzip")), besides=("closed",))
    # The field's name is in the compression table now, and later requests refer to it there (RFC 7541, section 6.2.1).
    stream = connection.start("", fields=PLAIN)
    connection.data(stream, message(BODY), end_stream=True)
    answer = asserts.answered(connection, stream)
    if not answer.closed:
        served(answer)


MALFORMED: dict[str, Fields] = {
    "no_method": fields_with(":method", None),
    "no_scheme": fields_with(":scheme", None),
    "no_path": fields_with(":path", None),
    "two_methods": [(":method", "POST"), *PLAIN],
    "two_schemes": [(":scheme", "http"), *PLAIN],
    "two_paths": [(":path", ECHOES), *PLAIN],
    "other_method_first": [(":method", "GET"), *PLAIN],
    "other_path_first": [(":path", path("Other")), *PLAIN],
    "late_method": [*fields_with(":method", None), (":method", "POST")],
    "late_scheme": [*fields_with(":scheme", None), (":scheme", "http")],
    "late_path": [*fields_with(":path", None), (":path", ECHOES)],
    "unknown": [(":conformance", "1"), *PLAIN],
    "response": [(":status", "200"), *PLAIN],
}


@requirement("GRPC-HDR-12")
@pytest.mark.parametrize("fields", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_pseudo_fields(grpc_library: LibraryTarget, fields: Fields) -> None:
    """The server MUST refuse a request whose pseudo-fields are missing, repeated, misplaced or unknown."""
    refused(grpc_library, fields)


@requirement("GRPC-HDR-13")
def test_other_scheme_is_treated_consistently(grpc_library: LibraryTarget) -> None:
    """The server SHOULD treat every `:scheme` other than http and https alike: refuse it, or ignore it."""
    server = serve(grpc_library)
    schemes = ("ftp", "grpc", "coap+tcp", "ftp")
    answers = [ask(server.connect(), fields_with(":scheme", scheme)) for scheme in schemes]
    for answer in answers:
        if answer.status == 0:
            served(answer)
        else:
            asserts.fails(answer, besides=("closed",))
    ends = [
        (scheme, "served" if answer.status == 0 else "refused") for scheme, answer in zip(schemes, answers, strict=True)
    ]
    asserts.true("every other scheme is treated alike", len({end for _, end in ends}) == 1, str(ends))
    asserts.still_serves(server.connect(), ECHOES)
    asserts.equal("calls of the handler", len(schemes) if ends[0][1] == "served" else 0, calls(grpc_library))


@requirement("GRPC-HDR-14")
def test_host_without_authority(grpc_library: LibraryTarget) -> None:
    """The server SHOULD accept a request with `host` and without `:authority`."""
    served(ask(serve(grpc_library).connect(), [*fields_with(":authority", None), ("host", "localhost")]))


@requirement("GRPC-HDR-14")
def test_neither_host_nor_authority(grpc_library: LibraryTarget) -> None:
    """The server SHOULD serve a request without `:authority` and `host`, or refuse it as malformed."""
    server = serve(grpc_library)
    answer = ask(server.connect(), fields_with(":authority", None))
    if answer.status == 0:
        served(answer)
    else:
        asserts.fails(answer, besides=("closed",))
        not_called(grpc_library, server)


LENGTH = len(message(BODY))


@requirement("GRPC-HDR-15")
@pytest.mark.parametrize("frames", [1, 2, LENGTH], ids=["one", "two", "octets"])
def test_matching_content_length(grpc_library: LibraryTarget, frames: int) -> None:
    """The server SHOULD accept a `content-length` that is the sum of the DATA frames."""
    connection = serve(grpc_library).connect()
    stream = connection.start("", fields=[*PLAIN, ("content-length", str(LENGTH))])
    size = -(-LENGTH // frames)
    for at in range(0, LENGTH, size):
        connection.data(stream, message(BODY)[at : at + size], end_stream=at + size >= LENGTH)
    served(asserts.answered(connection, stream))


@requirement("GRPC-HDR-15")
@pytest.mark.parametrize("declared", [0, LENGTH - 1, LENGTH + 1], ids=["none", "less", "more"])
def test_other_content_length_is_malformed(grpc_library: LibraryTarget, declared: int) -> None:
    """The server SHOULD treat a `content-length` other than the sum of the DATA frames as malformed."""
    answer = ask(serve(grpc_library).connect(), [*PLAIN, ("content-length", str(declared))])
    asserts.fails(answer, besides=("closed",))


@requirement("GRPC-HDR-16")
@pytest.mark.parametrize("agents", [(), ("",), ("any/1.0",)], ids=["none", "empty", "unknown"])
def test_user_agent_is_optional(grpc_library: LibraryTarget, agents: tuple[str, ...]) -> None:
    """The server MUST accept a request without `user-agent`."""
    served(ask(serve(grpc_library).connect(), [*PLAIN, *(("user-agent", agent) for agent in agents)]))


UNKNOWN_FIELDS = {
    "expect": [("expect", "100-continue")],
    "proxies": [("via", "1.1 proxy"), ("forwarded", "for=192.0.2.1"), ("x-forwarded-for", "192.0.2.1")],
    "browsers": [("origin", "http://localhost"), ("sec-fetch-mode", "cors"), ("cookie", "a=b"), ("cookie", "c=d")],
    "caches": [("cache-control", "no-cache"), ("if-none-match", "*"), ("range", "bytes=0-1")],
    "negotiation": [("accept", "text/html"), ("accept-encoding", "br"), ("accept-language", "de"), ("priority", "u=1")],
}


@requirement("GRPC-HDR-19")
@pytest.mark.parametrize("fields", UNKNOWN_FIELDS.values(), ids=UNKNOWN_FIELDS.keys())
def test_unknown_fields_do_no_harm(grpc_library: LibraryTarget, fields: Fields) -> None:
    """The server SHOULD serve a request with unknown end-to-end fields as one without them."""
    answer = ask(serve(grpc_library).connect(), [*PLAIN, *fields])
    # An interim response is legal, and what it announces comes after it (RFC 9110, section 15.2).
    final = [block for block in answer.blocks if not (block.first(":status") or b"").startswith(b"1")]
    served(dataclasses.replace(answer, blocks=tuple(final)))


UNKNOWN_PATHS: dict[str, str] = {
    "other_service": "/conformance.Other/Echo",
    "other_method": path("Other"),
    "root": "/",
    "service": "/conformance.Wire",
    "service_slash": "/conformance.Wire/",
    "slash_after": f"{ECHOES}/",
    "slash_before": f"/{ECHOES}",
    "extra_segment": f"{ECHOES}/more",
    "other_case": "/Conformance.wire/echo",
    "escaped_letter": "/conformance.Wire/%45cho",
    "escaped_slash": "/conformance.Wire%2FEcho",
}


@requirement("GRPC-HDR-09")
@pytest.mark.parametrize("name", UNKNOWN_PATHS.values(), ids=UNKNOWN_PATHS.keys())
def test_unknown_path_is_unimplemented(grpc_library: LibraryTarget, name: str) -> None:
    """The server MUST end a call whose path names no method with UNIMPLEMENTED under `:status` 200."""
    server = serve(grpc_library)
    connection = server.connect()
    fields = request_fields(name)
    asserts.ended_with(ask(connection, fields), "UNIMPLEMENTED")
    asserts.ended_with(
        asserts.answered(connection, connection.start("", fields=fields, end_stream=True)), "UNIMPLEMENTED"
    )
    asserts.ended_with(asserts.answered(connection, connection.start("", fields=fields)), "UNIMPLEMENTED")
    not_called(grpc_library, server)


@requirement("GRPC-HDR-09")
@pytest.mark.parametrize("requests", [b"one", [b"one", b"two"]], ids=["unary", "stream"])
def test_unknown_path_of_a_stock_client(grpc_library: LibraryTarget, requests: Any) -> None:
    """The server MUST end a stock client's call of an unknown method with UNIMPLEMENTED."""
    outcome = serve(grpc_library).call("Other", requests)
    asserts.equal("the outcome", ("UNIMPLEMENTED", ()), (outcome.code, outcome.messages))


@requirement("GRPC-HDR-10")
@pytest.mark.parametrize("suffix", ["?a=1", "?", "#part"], ids=["query", "question_mark", "fragment"])
def test_path_is_opaque(grpc_library: LibraryTarget, suffix: str) -> None:
    """The server MUST take a path with a query or fragment for an unknown method, as grpcio does."""

    def exchange(target: LibraryTarget) -> tuple[int | None, int]:
        answer = ask(serve(target).connect(), request_fields(ECHOES + suffix))
        return answer.status, calls(target)

    asserts.parity(grpc_library, exchange, expected=(12, 0))


@requirement("GRPC-HDR-11")
@pytest.mark.parametrize(
    "name",
    ["", ECHOES[1:], "*", f"http://localhost{ECHOES}"],
    ids=["empty", "no_slash", "asterisk", "absolute"],
)
def test_path_without_slash(grpc_library: LibraryTarget, name: str) -> None:
    """The server SHOULD refuse a path that is empty or has no leading slash, and keep the connection."""
    server = serve(grpc_library)
    connection = server.connect()
    asserts.stream_refused(ask(connection, request_fields(name)))
    asserts.still_serves(connection, ECHOES)
    not_called(grpc_library, server)


@requirement("GRPC-HDR-20")
@pytest.mark.parametrize(
    "name", [f"/conformance.Wire/{'x' * 3000}", path("Écho"), "/größe.日本/Echo"], ids=["3k", "method", "service"]
)
def test_unusual_path_is_unimplemented(grpc_library: LibraryTarget, name: str) -> None:
    """The server MUST end a call of a path of 3 KB, or of UTF-8 octets, with UNIMPLEMENTED."""
    connection = serve(grpc_library).connect()
    asserts.ended_with(ask(connection, request_fields(name)), "UNIMPLEMENTED")
    asserts.still_serves(connection, ECHOES)
