"""Options of the server: how connections end by age and idleness, what is ignored, and the forms that are taken."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.servers.base import BindFailed
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, path, unary
from pytest_grpc_conformance.wire.stock import Outcome

Options = list[tuple[str, Any]]
ECHOES = path("Echo")
AGE: Options = [("grpc.max_connection_age_ms", 200), ("grpc.max_connection_age_grace_ms", 200)]
AGE_WITH_CALL: Options = [("grpc.max_connection_age_ms", 1000), ("grpc.max_connection_age_grace_ms", 200)]
IDLE: Options = [("grpc.max_connection_idle_ms", 200)]
NO_TARPIT: Options = [("grpc.http.tarpit", 0)]
"""grpcio delays a refusal by up to a second, unless told not to."""
SLACK = 3.0
"""Seconds on top of the deadline for what options delay."""
ANY_STREAM = (1 << 31) - 1


def refuses(target: LibraryTarget, options: Options) -> bool:
    """Whether a server cannot be had with these options: it is refused loudly."""
    try:
        target.serve({"Echo": ECHO}, options=options)
    except BindFailed:
        raise
    except Exception:
        return True
    return False


def ending(target: LibraryTarget, options: Options, *, call: bool) -> list[Any]:
    """How the server ends a connection by itself: the GOAWAYs, and what a handler that runs gets."""

    async def stays(request: bytes, context: Any) -> bytes:
        target.seen.note("runs")
        try:
            await asyncio.Event().wait()
        except BaseException as end:
            target.seen.note("ended by", type(end))
            raise
        return b""

    connection = target.serve({"Echo": ECHO, "Stays": unary(stays)}, options=options).connect()
    if call:
        connection.call(path("Stays"))
        asserts.seen(target, "runs")
    connection.wait_closed(target.timeout + SLACK)
    last_streams = [frame.last_stream_id for frame in connection.received.goaways()]
    ends = [end.__name__ for end in asserts.seen(target, "ended by")] if call else []
    return [last_streams, *ends]


@requirement("GRPC-KA-06")
@pytest.mark.parametrize("options", [AGE, AGE_WITH_CALL], ids=["idle", "call"])
def test_old_connection_ends(grpc_library: LibraryTarget, options: Options) -> None:
    """The server SHOULD end old connections, with two GOAWAYs and a grace, or refuse the option."""
    call = options is AGE_WITH_CALL
    if not refuses(grpc_library, options):
        expected = [[ANY_STREAM, 1], "CancelledError"] if call else [[ANY_STREAM, 0]]
        asserts.parity(grpc_library, lambda target: ending(target, options, call=call), expected=expected)


@requirement("GRPC-KA-06")
def test_idle_connection_ends(grpc_library: LibraryTarget) -> None:
    """The server SHOULD end idle connections with GOAWAY, or refuse the option."""

    def exchange(target: LibraryTarget) -> str:
        last_streams = ending(target, IDLE, call=False)[0]
        return "GOAWAY" if last_streams and last_streams[-1] == 0 else f"GOAWAYs {last_streams}"

    if not refuses(grpc_library, IDLE):
        asserts.parity(grpc_library, exchange, expected="GOAWAY")


IGNORED: dict[str, Options] = {
    "unknown": [("grpc.no_such_option", 1), ("conformance.text", "text"), ("", 0)],
    "client": [
        ("grpc.primary_user_agent", "agent/1.0"),
        ("grpc.default_authority", "elsewhere"),
        ("grpc.lb_policy_name", "round_robin"),
        ("grpc.service_config", '{"methodConfig": []}'),
        ("grpc.enable_retries", 1),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.ssl_target_name_override", "elsewhere"),
        ("grpc.use_local_subchannel_pool", 1),
    ],
}


def served(target: LibraryTarget, options: Any) -> Outcome | str:
    """The outcome of a call to a server with these options, or the kind of error with which they are refused."""
    try:
        server = target.serve({"Echo": ECHO}, options=options)
    except BindFailed:
        raise
    except Exception as refused:
        return type(refused).__name__
    return server.call("Echo", b"request")


@requirement("GRPC-KA-07")
@pytest.mark.parametrize("options", IGNORED.values(), ids=IGNORED.keys())
def test_other_options_are_ignored(grpc_library: LibraryTarget, options: Options) -> None:
    """The server MUST ignore unknown options, and options that are meant for clients."""
    expected = Outcome("OK", messages=(b"request",))
    asserts.parity(grpc_library, lambda target: served(target, options), expected=expected)


@requirement("GRPC-KA-08")
@pytest.mark.parametrize("value", ["5", "five", 5.0, b"5"], ids=["digits", "word", "float", "bytes"])
@pytest.mark.parametrize(
    "name",
    ["grpc.max_receive_message_length", "grpc.keepalive_time_ms", "grpc.max_concurrent_streams"],
    ids=["size", "keepalive", "streams"],
)
def test_option_of_another_type(grpc_library: LibraryTarget, name: str, value: Any) -> None:
    """The server SHOULD survive an option whose value has another type, and ignore it as grpcio does."""
    expected = Outcome("OK", messages=(b"request",))
    asserts.parity(grpc_library, lambda target: served(target, [(name, value)]), expected=expected)


FORMS: dict[str, Callable[[Options], Any]] = {
    "list": list,
    "tuple": tuple,
    "iterator": iter,
    "generator": lambda options: (option for option in options),
}


@requirement("GRPC-KA-09")
@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS.keys())
def test_options_in_any_form(grpc_library: LibraryTarget, form: Callable[[Options], Any]) -> None:
    """The server SHOULD take its options as a list, a tuple or a generator."""

    def exchange(target: LibraryTarget) -> str:
        outcome = served(target, form([*NO_TARPIT, ("grpc.max_receive_message_length", 5)]))
        return outcome.code if isinstance(outcome, Outcome) else outcome

    asserts.parity(grpc_library, exchange, expected="RESOURCE_EXHAUSTED")


@requirement("GRPC-KA-09")
def test_options_may_be_none(grpc_library: LibraryTarget) -> None:
    """The server SHOULD take None for its options."""
    expected = Outcome("OK", messages=(b"request",))
    asserts.parity(grpc_library, lambda target: served(target, None), expected=expected)
