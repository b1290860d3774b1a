"""Faults of request metadata: what handlers are shown, malformed fields, and limits."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import grpc

from pytest_grpc_conformance.servers.base import ServerSetup
from pytest_grpc_conformance.wire.frames import Flag, Kind, Setting
from tests.faults.faulty_library import FaultyContext, FaultyLibrary
from tests.faults.frame_proxy import FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.table import WIRE, Fault

Pairs = Sequence[tuple[str, Any]]
Change = Callable[[Pairs], Any]


def showing(change: Change) -> Mutant:
    """A library that shows handlers other metadata than came."""

    class Context(FaultyContext):
        def invocation_metadata(self) -> Any:
            return change(self._real.invocation_metadata())

    return Mutant(library=FaultyLibrary(context=Context))


def rebuilt(pairs: Any, change: Callable[[Any], Any]) -> Any:
    """The metadata with each value changed."""
    return tuple(pair._replace(value=change(pair.value)) for pair in pairs)


text_cut_at_comma = showing(
    lambda pairs: rebuilt(pairs, lambda value: value.partition(",")[0] if isinstance(value, str) else value)
)
metadata_in_a_dict = showing(lambda pairs: tuple(dict(tuple(pair) for pair in pairs).items()))
metadata_sorted = showing(lambda pairs: tuple(sorted(pairs)))
empty_values_dropped = showing(lambda pairs: tuple(pair for pair in pairs if pair[1]))
binary_as_text = showing(
    lambda pairs: rebuilt(pairs, lambda value: value if isinstance(value, str) else value.decode("latin-1"))
)
user_agent_hidden = showing(lambda pairs: tuple(pair for pair in pairs if pair[0] != "user-agent"))
trace_shown = showing(lambda pairs: (*pairs, ("grpc-trace-bin", b"\x01\x02\x03")))
metadata_is_a_list = showing(list)
metadata_of_plain_pairs = showing(lambda pairs: tuple(tuple(pair) for pair in pairs))
at_most_100_entries = showing(lambda pairs: pairs[:100])


async def strict(context: Any) -> None:
    """Aborts a call whose metadata is beyond gRPC's grammar, in place of its handler."""
    for key, value in context.invocation_metadata():
        if not key.endswith("-bin") and not all(0x20 <= ord(character) < 0x7F for character in value):
            await context.abort(grpc.StatusCode.INTERNAL, "illegal header value")


def checking_first(check: Callable[[Any], Awaitable[None]]) -> Callable[[Any, str], Any]:
    """Unary handlers that check something before they run."""

    def change(handler: Any, path: str) -> Any:
        function = handler.unary_unary
        if function is None:
            return handler

        async def checked(request: bytes, context: Any) -> Any:
            await check(context)
            return await function(request, context)

        return grpc.unary_unary_rpc_method_handler(checked)

    return change


strict_about_ascii = Mutant(library=FaultyLibrary(handler=checking_first(strict)))
"""An echo of such values fails on grpcio without this fault too, when they are given back."""


def refused_with(passing: Passing, part: bytes) -> bool:
    """Whether these are grpcio's trailers of a request that it refuses, with a message that has this part."""
    return passing.is_trailers and part in dict(passing.fields or ()).get(b"grpc-message", b"")


class BadBase64Passes(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [passing.with_field("grpc-status", "0")] if refused_with(passing, b"illegal base64") else [passing]


class BadNamesPass(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        return [passing.with_field("grpc-status", "0")] if refused_with(passing, b"Illegal header key") else [passing]


class BadNamesEndTheConnection(FrameFault):
    """One malformed field ends the connection, as where all errors of a header block are connection errors."""

    def connected(self, send_to_client: Callable[[bytes], None], close: Callable[[], None]) -> None:
        self._close = close

    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if refused_with(passing, b"Illegal header key"):
            self._close()
            return []
        return [passing]


class LargeRequestsEndTheConnection(BadNamesEndTheConnection):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.is_trailers and dict(passing.fields or ()).get(b"grpc-status") == b"8":
            self._close()
            return []
        return [passing]


class LargeRequestsAreAnHttpError(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.is_trailers and dict(passing.fields or ()).get(b"grpc-status") == b"8":
            return [passing.but(fields=((b":status", b"431"),))]
        return [passing]


class NoLimitAnnounced(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.kind != Kind.SETTINGS or passing.flags & Flag.ACK:
            return [passing]
        entries = [passing.payload[at : at + 6] for at in range(0, len(passing.payload), 6)]
        limit = Setting.MAX_HEADER_LIST_SIZE.to_bytes(2, "big")
        return [passing.but(payload=b"".join(entry for entry in entries if entry[:2] != limit))]


def without_limits(setup: ServerSetup) -> ServerSetup:
    return dataclasses.replace(setup, options=[one for one in setup.options if "metadata_size" not in one[0]])


bad_base64_passes = Mutant(library=FaultyLibrary(frames=BadBase64Passes))
bad_names_pass = Mutant(library=FaultyLibrary(frames=BadNamesPass))
bad_names_end_the_connection = Mutant(library=FaultyLibrary(frames=BadNamesEndTheConnection))
grpcio_as_it_is = Mutant(library=FaultyLibrary())
"""No fault but grpcio's own: it departs from these rows itself, so that no planted fault can be told from that."""
large_requests_end_the_connection = Mutant(library=FaultyLibrary(frames=LargeRequestsEndTheConnection))
large_requests_are_an_http_error = Mutant(library=FaultyLibrary(frames=LargeRequestsAreAnHttpError))
no_limit_announced = Mutant(library=FaultyLibrary(frames=NoLimitAnnounced))
limit_options_ignored = Mutant(library=FaultyLibrary(setup=without_limits))


def fault(mutant: str, **caught_by: str) -> Fault:
    """A fault noticed by functions of the two files; ``limits_`` before a name is the file about limits."""
    named = {
        f"grpc_metadata_limits/{name.removeprefix('limits_')}"
        if name.startswith("limits_")
        else f"grpc_metadata_request/{name}": rows
        for name, rows in caught_by.items()
    }
    return Fault(mutant, caught_by=named, protocols=WIRE)


FAULTS = (
    fault(
        "text_cut_at_comma",
        ascii_metadata_arrives_unchanged="GRPC-MD-01",
        stock_metadata_arrives_unchanged="GRPC-MD-01 GRPC-MD-04",
    ),
    fault(
        "metadata_in_a_dict",
        repeated_key_keeps_its_values="GRPC-MD-02",
        stock_repeated_key_keeps_its_values="GRPC-MD-02",
    ),
    fault("metadata_sorted", wire_order_across_keys="GRPC-MD-03"),
    fault("empty_values_dropped", binary_metadata_is_decoded="GRPC-MD-04"),
    fault(
        "binary_as_text",
        binary_metadata_is_decoded="GRPC-MD-04",
        stock_metadata_arrives_unchanged="GRPC-MD-01 GRPC-MD-04",
        metadata_is_a_tuple_of_named_tuples="GRPC-MD-16",
    ),
    fault("bad_base64_passes", bad_base64_fails_the_call="GRPC-MD-06"),
    fault(
        "strict_about_ascii",
        octets_beyond_ascii_do_not_fail_the_call="GRPC-MD-08",
        octets_beyond_ascii_can_be_echoed="GRPC-MD-09",
    ),
    fault("bad_names_end_the_connection", malformed_field_costs_only_its_stream="GRPC-MD-11"),
    fault("bad_names_pass", upper_case_name_is_refused="GRPC-MD-12"),
    Fault(
        "grpcio_as_it_is",
        caught_by={
            "grpc_metadata_request/joined_binary_values_are_split": "GRPC-MD-05",
            "grpc_metadata_request/forbidden_octet_makes_a_request_malformed": "GRPC-MD-10",
            "grpc_metadata_request/connection_field_makes_a_request_malformed": "GRPC-MD-13",
            "grpc_metadata_invalid/text_under_binary_key_in_trailers_ends_the_call": "GRPC-MD-27",
        },
        protocols=WIRE,
    ),
    fault("user_agent_hidden", fields_of_the_protocol_are_no_metadata="GRPC-MD-14"),
    fault("trace_shown", reserved_key_is_not_shown="GRPC-MD-15"),
    fault("metadata_is_a_list", metadata_is_a_tuple_of_named_tuples="GRPC-MD-16"),
    fault("metadata_of_plain_pairs", metadata_is_a_tuple_of_named_tuples="GRPC-MD-16"),
    fault("large_requests_end_the_connection", limits_large_request_header_list_costs_only_its_call="GRPC-MD-17"),
    fault("large_requests_are_an_http_error", limits_refused_header_list_is_resource_exhausted="GRPC-MD-18"),
    fault("limit_options_ignored", limits_options_move_the_limits="GRPC-MD-19"),
    fault("no_limit_announced", limits_limit_in_force_is_announced="GRPC-MD-20"),
    fault("at_most_100_entries", limits_hundreds_of_entries_arrive="GRPC-MD-35"),
)
