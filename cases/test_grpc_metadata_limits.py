"""How much metadata a server takes and sends: limits on request header lists, and large lists in both directions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, path, server_streaming, unary
from pytest_grpc_conformance.wire.connection import RawConnection, request_fields
from pytest_grpc_conformance.wire.frames import Setting

NO_TARPIT = (("grpc.http.tarpit", 0),)
"""gRPC core answers a call that it refuses after a random part of a second, unless told not to."""
OVERHEAD = 32
"""What each field counts beside its octets (RFC 9113, section 6.5.2)."""
Pairs = Sequence[tuple[str, str]]


def list_size(fields: Sequence[tuple[str | bytes, str | bytes]]) -> int:
    """The size of a header list as SETTINGS_MAX_HEADER_LIST_SIZE counts it."""
    return sum(len(name) + len(value) + OVERHEAD for name, value in fields)


def filler(size: int, count: int | None = None) -> list[tuple[str, str]]:
    """Metadata in ``count`` fields, else in some of 2 to 4 KB, that makes an echo call's header list ``size`` long."""
    count = count or 1 + size // 4_096
    left = size - list_size(request_fields(path("Echo")))
    names = [f"filler-{number:05}" for number in range(count)]
    each = left // count
    sizes = [each] * (count - 1) + [left - each * (count - 1)]
    return [(name, "x" * (one - OVERHEAD - len(name))) for name, one in zip(names, sizes, strict=True)]


def prepared(target: LibraryTarget, options: Mapping[str, int] = MappingProxyType({})) -> RawConnection:
    """A connection to an echo method. SETTINGS are acknowledged: from then on the server's limit is in force."""
    connection = target.serve({"Echo": ECHO}, options=[*options.items(), *NO_TARPIT]).connect()
    connection.fence()
    return connection


def sized_call(connection: RawConnection, size: int, count: int | None = None) -> int:
    """An echo call with a header list of a size; its stream."""
    return connection.call(path("Echo"), metadata=filler(size, count))


@requirement("GRPC-MD-17")
@pytest.mark.parametrize(
    ("size", "count"),
    [(12 << 10, None), (16_896, None), (60 << 10, None), (60 << 10, 600), (120 << 10, None)],
    ids=["12k", "16.5k", "60k", "60k-in-600-fields", "120k"],
)
def test_large_request_header_list_costs_only_its_call(
    grpc_library: LibraryTarget, size: int, count: int | None
) -> None:
    """The server SHOULD refuse too large a header list for its call only; the next call succeeds."""
    with asserts.owed("the acknowledgement of a PING"):
        connection = prepared(grpc_library)
    answer = asserts.answered(connection, sized_call(connection, size, count))
    asserts.true("the connection survives a large header list", not answer.closed, str(answer))
    asserts.still_serves(connection, path("Echo"))


@requirement("GRPC-MD-18")
@pytest.mark.parametrize("size", [17_000, 60 << 10], ids=["17k", "60k"])
def test_refused_header_list_is_resource_exhausted(grpc_library: LibraryTarget, size: int) -> None:
    """The server MUST refuse a header list beyond the limit with RESOURCE_EXHAUSTED, `:status` 200."""

    def exchange(target: LibraryTarget) -> Any:
        connection = prepared(target)
        answer = connection.answer(sized_call(connection, size))
        return answer.http_status, answer.status

    asserts.parity(grpc_library, exchange, expected=("200", asserts.STATUS["RESOURCE_EXHAUSTED"]))


SOFT, HARD = "grpc.max_metadata_size", "grpc.absolute_max_metadata_size"


@requirement("GRPC-MD-19")
@pytest.mark.parametrize(
    ("options", "within", "beyond"),
    [
        ({SOFT: 20_000}, 19_500, 25_500),
        ({HARD: 40_000}, 31_500, 40_500),
        ({SOFT: 30_000, HARD: 40_000}, 29_500, 40_500),
        ({HARD: 4_000}, 3_000, 4_500),
    ],
    ids=["soft", "hard", "both", "hard-below-default"],
)
def test_options_move_the_limits(
    grpc_library: LibraryTarget, options: dict[str, int], within: int, beyond: int
) -> None:
    """The server SHOULD accept all below the soft limit and nothing above the hard one, as options say.

    Between the two gRPC core refuses at random, so that nothing is asked there.
    """

    def exchange(target: LibraryTarget) -> Any:
        connection = prepared(target, options)
        ends = [connection.answer(sized_call(connection, size)).status == 0 for size in (within, beyond)]
        return dict(zip(("within is accepted", "beyond is accepted"), ends, strict=True))

    asserts.parity(grpc_library, exchange, expected={"within is accepted": True, "beyond is accepted": False})


@requirement("GRPC-MD-20")
@pytest.mark.parametrize("options", [{}, {HARD: 40_000}], ids=["default", "raised"])
def test_limit_in_force_is_announced(grpc_library: LibraryTarget, options: dict[str, int]) -> None:
    """The server SHOULD announce its header list limit as SETTINGS_MAX_HEADER_LIST_SIZE."""
    with asserts.owed("SETTINGS"):
        connection = prepared(grpc_library, options)
    limit = connection.received.settings().get(Setting.MAX_HEADER_LIST_SIZE)
    if limit is None:
        asserts.violation("no limit is announced", "SETTINGS_MAX_HEADER_LIST_SIZE", "SETTINGS without it")
    answer = asserts.answered(connection, sized_call(connection, limit + 512))
    asserts.fails(answer, besides=("closed",))


@requirement("GRPC-MD-34")
@pytest.mark.parametrize(
    "pairs",
    [[("large", "x" * (6 << 10))], [("large", "x" * (20 << 10))], [(f"key-{n:02}", f"{n}" * 10) for n in range(100)]],
    ids=["6k", "20k", "100-fields"],
)
def test_large_response_metadata_arrives(grpc_library: LibraryTarget, pairs: Pairs) -> None:
    """The server MUST send large response metadata complete to a client that allows it."""

    async def sends(request: bytes, context: Any) -> Any:
        await context.send_initial_metadata(tuple(pairs))
        context.set_trailing_metadata(tuple(pairs))
        yield b"answer"

    outcome = grpc_library.serve({"Sends": server_streaming(sends)}).call("Sends")
    asserts.equal("the status", "OK", outcome.code)
    asserts.equal("the initial metadata", tuple(pairs), outcome.initial)
    asserts.equal("the trailing metadata", tuple(pairs), outcome.trailing)


@requirement("GRPC-MD-35")
def test_hundreds_of_entries_arrive(grpc_library: LibraryTarget) -> None:
    """The server MUST hand on hundreds of request metadata entries that are within its limit."""
    sent = tuple((f"k{number:03}", "v") for number in range(200))

    def exchange(target: LibraryTarget) -> Any:
        async def notes(request: bytes, context: Any) -> bytes:
            target.seen.note("metadata", tuple(sorted((k, v) for k, v in context.invocation_metadata() if v == "v")))
            return b""

        outcome = target.serve({"Notes": unary(notes)}).call("Notes", metadata=sent)
        return outcome.code, target.seen.values("metadata")

    asserts.parity(grpc_library, exchange, expected=("OK", [sent]))
