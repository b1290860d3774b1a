"""What a handler learns from its context, reads with it and writes with it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import tempfile
from collections.abc import Callable, Coroutine
from typing import Any

import grpc
import grpc.aio
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.servers.base import BindFailed
from pytest_grpc_conformance.targets.library import (
    ECHO,
    Handler,
    LibraryTarget,
    bidi,
    client_streaming,
    path,
    server_streaming,
    unary,
)
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import RawConnection

EOF: Any = vars(grpc.aio)["EOF"]
Look = Callable[[Any], Coroutine[Any, Any, Any]]
"""What a handler does with its context, and what it finds."""
of_each_kind = pytest.mark.parametrize("kind", ["unary", "server_streaming", "client_streaming", "bidi"])
METHODS = """
abort abort_with_status add_done_callback auth_context cancelled code details disable_next_message_compression done
invocation_metadata peer peer_identities peer_identity_key read send_initial_metadata set_code set_compression
set_details set_trailing_metadata time_remaining trailing_metadata write
"""


async def _found(look: Look, context: Any) -> Any:
    """What a look gives, or the class of what it raises."""
    try:
        return await look(context)
    except Exception as error:
        return f"raised {type(error).__name__}"


def _looking(target: LibraryTarget, look: Look, kind: str) -> Handler:
    """A handler of a kind that notes what it finds as ``found``."""

    async def one_response(request: Any, context: Any) -> bytes:
        target.seen.note("called")
        target.seen.note("found", await _found(look, context))
        return b"response"

    async def responses(request: Any, context: Any) -> Any:
        target.seen.note("called")
        target.seen.note("found", await _found(look, context))
        yield b"response"

    handlers = {
        "unary": unary(one_response),
        "server_streaming": server_streaming(responses),
        "client_streaming": client_streaming(one_response),
        "bidi": bidi(responses),
    }
    return handlers[kind]


def _call(target: LibraryTarget, connection: RawConnection) -> Any:
    """What a handler that looks finds in one call."""
    answer = connection.unary(path("Looks"))
    if not target.seen.values("called"):
        return f"the handler was not called: {answer}"
    return target.seen.wait("found", target.timeout)[-1]


def _look(target: LibraryTarget, look: Look, kind: str = "unary") -> Any:
    """What a handler of a kind finds in one call of a server of its own."""
    return _call(target, target.serve({"Looks": _looking(target, look, kind)}).connect())


@requirement("GRPC-CTX-01")
@of_each_kind
def test_context_has_these_methods(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST give the async context the public methods that grpcio's has, and no others."""

    async def look(context: Any) -> list[str]:
        return sorted(name for name in dir(context) if not name.startswith("_"))

    asserts.parity(grpc_library, lambda target: _look(target, look, kind), expected=METHODS.split())


@requirement("GRPC-CTX-02")
@pytest.mark.parametrize("way", ["set_code", "set_number", "abort"])
def test_code_is_what_was_given(grpc_library: LibraryTarget, way: str) -> None:
    """The server MUST return None from `code()` until a code is set, and then the object that was passed."""

    async def look(context: Any) -> tuple[Any, ...]:
        before = context.code()
        code: Any = 5 if way == "set_number" else grpc.StatusCode.NOT_FOUND
        if way == "abort":
            with contextlib.suppress(grpc.aio.AbortError):
                await context.abort(code, "as given")
        else:
            context.set_code(code)
        found = context.code()
        if way == "set_number":
            context.set_code(grpc.StatusCode.NOT_FOUND)  # How the call ends is no matter of this case.
        return before, found, found is code

    code = 5 if way == "set_number" else grpc.StatusCode.NOT_FOUND
    asserts.parity(grpc_library, lambda target: _look(target, look), expected=(None, code, True))


@requirement("GRPC-CTX-03")
@pytest.mark.parametrize("way", ["set_details", "abort"])
def test_details_are_what_was_given(grpc_library: LibraryTarget, way: str) -> None:
    """The server MUST return '' from `details()` until details are set, and then their text."""

    async def look(context: Any) -> tuple[Any, Any]:
        before = context.details()
        if way == "abort":
            with contextlib.suppress(grpc.aio.AbortError):
                await context.abort(grpc.StatusCode.NOT_FOUND, "as given")
        else:
            context.set_details("as given")
        return before, context.details()

    asserts.parity(grpc_library, lambda target: _look(target, look), expected=("", "as given"))


@requirement("GRPC-CTX-04")
def test_details_set_to_none(grpc_library: LibraryTarget) -> None:
    """The server SHOULD accept `set_details(None)` and then return None from `details()`, as grpcio does."""

    async def look(context: Any) -> tuple[Any, Any]:
        accepted = context.set_details(None)
        return accepted, context.details()

    asserts.parity(grpc_library, lambda target: _look(target, look), expected=(None, None))


@requirement("GRPC-CTX-04")
@pytest.mark.parametrize("details", [5, b"text"], ids=["int", "bytes"])
def test_details_that_are_no_text(grpc_library: LibraryTarget, details: Any) -> None:
    """The server SHOULD raise TypeError from `set_details` of an int or bytes, as grpcio does."""

    async def look(context: Any) -> Any:
        try:
            return context.set_details(details)
        finally:
            context.set_details("text")  # How the call ends is no matter of this case.

    asserts.parity(grpc_library, lambda target: _look(target, look), expected="raised TypeError")


TRAILING = (("key", "one"), ("key", "two"), ("key-bin", b"\0\xff"))
SEQUENCES = {"tuple": TRAILING, "list": list(TRAILING), "metadata": grpc.aio.Metadata(*TRAILING)}


@requirement("GRPC-CTX-05")
@pytest.mark.parametrize("given", SEQUENCES.values(), ids=SEQUENCES.keys())
def test_trailing_metadata_is_a_tuple(grpc_library: LibraryTarget, given: Any) -> None:
    """The server SHOULD return () from `trailing_metadata()`, and then a tuple of what was set."""

    async def look(context: Any) -> tuple[Any, ...]:
        before = context.trailing_metadata()
        context.set_trailing_metadata(given)
        found = context.trailing_metadata()
        return before, type(found).__name__, [tuple(pair) for pair in found]

    asserts.parity(grpc_library, lambda target: _look(target, look), expected=((), "tuple", list(TRAILING)))


async def _peer(context: Any) -> Any:
    return context.peer()


def _seen_peer(target: LibraryTarget, host: str, client: str, kind: str = "unary") -> str:
    """What a handler takes for its peer, the client's true port replaced by a word."""
    try:
        served = target.serve({"Looks": _looking(target, _peer, kind)}, host=host)
    except BindFailed as failure:
        pytest.skip(f"this host has no {host}: {failure}")
    address = f"[{client}]:{served.port}" if ":" in client else f"{client}:{served.port}"
    with RawConnection(address, target.transcript, timeout=target.timeout) as connection:
        return str(_call(target, connection)).replace(f":{connection.local_port}", ":PORT")


@requirement("GRPC-CTX-06")
@pytest.mark.parametrize("host", ["127.0.0.1", "::"], ids=["ipv4", "dual_stack"])
def test_peer_over_ipv4(grpc_library: LibraryTarget, host: str) -> None:
    """The server MUST give `ipv4:A.B.C.D:port` as `peer()` of an IPv4 client, dual stack or not."""
    asserts.parity(grpc_library, lambda target: _seen_peer(target, host, "127.0.0.1"), expected="ipv4:127.0.0.1:PORT")


@requirement("GRPC-CTX-07")
def test_peer_over_ipv6(grpc_library: LibraryTarget) -> None:
    """The server SHOULD give `ipv6:%5B::1%5D:port` as `peer()` of an IPv6 client, as grpcio does."""
    asserts.parity(grpc_library, lambda target: _seen_peer(target, "::1", "::1"), expected="ipv6:%5B::1%5D:PORT")


@requirement("GRPC-CTX-07")
def test_peer_over_unix_socket(grpc_library: LibraryTarget) -> None:
    """The server SHOULD give a `peer()` that begins with `unix:` on a Unix socket, as grpcio does."""

    def exchange(target: LibraryTarget) -> str:
        with tempfile.TemporaryDirectory() as folder:
            served = target.serve({"Looks": _looking(target, _peer, "unary")}, host=f"unix:{folder}/socket")
            peer = str(_call(target, served.connect()))
            served.close()
        return peer[:5]

    asserts.parity(grpc_library, exchange, expected="unix:")


@requirement("GRPC-CTX-08")
@of_each_kind
def test_peer_in_each_kind_of_method(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST give the client's address as `peer()` in methods of every kind."""
    asserts.parity(
        grpc_library, lambda target: _seen_peer(target, "127.0.0.1", "127.0.0.1", kind), expected="ipv4:127.0.0.1:PORT"
    )


INSECURE = {"transport_security_type": [b"insecure"], "security_level": [b"TSI_SECURITY_NONE"]}


@requirement("GRPC-CTX-09")
@of_each_kind
def test_auth_context_of_insecure_port(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST say in `auth_context()` that an insecure port is so, and name no peer identity."""

    async def look(context: Any) -> tuple[Any, ...]:
        found = context.auth_context()
        return type(found).__name__, dict(found), context.peer_identities(), context.peer_identity_key()

    asserts.parity(grpc_library, lambda target: _look(target, look, kind), expected=("dict", INSECURE, None, None))


@requirement("GRPC-CTX-10")
def test_auth_context_is_not_shared(grpc_library: LibraryTarget) -> None:
    """The server MUST keep a change to what `auth_context()` returned from later calls and other RPCs."""

    def exchange(target: LibraryTarget) -> list[bool]:
        changed: list[Any] = []

        async def look(context: Any) -> bool:
            if not changed:
                changed.append(context.auth_context())
                with contextlib.suppress(TypeError):  # A dict that cannot be changed is as good.
                    changed[0]["planted"] = [b"value"]
            return "planted" in context.auth_context()

        connection = target.serve({"Looks": _looking(target, look, "unary")}).connect()
        _call(target, connection)
        _call(target, connection)
        for found in changed:
            with contextlib.suppress(KeyError, TypeError):
                del found["planted"]
        return target.seen.values("found")

    asserts.parity(grpc_library, exchange, expected=[False, False])


async def _read(context: Any) -> Any:
    found = await context.read()
    return "EOF" if found is EOF else found


@requirement("GRPC-CTX-11")
@pytest.mark.parametrize("kind", ["unary", "server_streaming"])
def test_read_without_request_stream(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST return `grpc.aio.EOF` from `read()` in a unary or server-streaming handler."""
    asserts.parity(grpc_library, lambda target: _look(target, _read, kind), expected="EOF")


async def _reads_and_iterates(requests: Any, context: Any) -> list[Any]:
    found = [await _read(context)]
    async for request in requests:
        found.append(request)
        break
    found.append(await _read(context))
    found += [request async for request in requests]
    return [*found, await _read(context), await _read(context)]


@requirement("GRPC-CTX-12")
@pytest.mark.parametrize("kind", ["client_streaming", "bidi"])
def test_read_mixed_with_iteration(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST return the messages in order from `read()` and `async for`, and then EOF for ever."""

    def exchange(target: LibraryTarget) -> list[Any]:
        async def one_response(requests: Any, context: Any) -> bytes:
            target.seen.note("found", await _reads_and_iterates(requests, context))
            return b""

        async def responses(requests: Any, context: Any) -> Any:
            target.seen.note("found", await _reads_and_iterates(requests, context))
            yield b""

        handler = client_streaming(one_response) if kind == "client_streaming" else bidi(responses)
        outcome = target.serve({"Reads": handler}).call("Reads", [b"%d" % number for number in range(6)])
        return [outcome.code, *target.seen.values("found")]

    expected = ["OK", [b"0", b"1", b"2", b"3", b"4", b"5", "EOF", "EOF"]]
    asserts.parity(grpc_library, exchange, expected=expected)


def _serialize(message: bytes) -> bytes:
    if message == b"bad":
        raise ValueError("bad message")
    return message


async def _write(message: Any, context: Any) -> Any:
    return await context.write(message)


SERIALIZERS = {"without": (None, 5, "raised TypeError"), "raising": (_serialize, b"bad", "raised ValueError")}


@requirement("GRPC-CTX-13")
@pytest.mark.parametrize(("serializer", "bad", "raised"), SERIALIZERS.values(), ids=SERIALIZERS.keys())
def test_write_that_cannot_be_serialised(grpc_library: LibraryTarget, serializer: Any, bad: Any, raised: str) -> None:
    """The server MUST raise from `write()` if a message cannot be serialised, and let the handler go on."""

    def exchange(target: LibraryTarget) -> tuple[Any, ...]:
        async def writes(request: bytes, context: Any) -> None:
            for message in (b"one", bad, b"two"):
                target.seen.note("wrote", await _found(functools.partial(_write, message), context))

        handler = grpc.unary_stream_rpc_method_handler(writes, response_serializer=serializer)
        outcome = target.serve({"Writes": handler}).call("Writes")
        return target.seen.values("wrote"), outcome.code, outcome.messages

    asserts.parity(grpc_library, exchange, expected=([None, raised, None], "OK", (b"one", b"two")))


@requirement("GRPC-CTX-14")
@pytest.mark.parametrize("kind", ["server_streaming", "bidi"])
def test_write_mixed_with_yield(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST send messages in order from an async generator that mixes `write()` and `yield`."""

    async def mixes(request: Any, context: Any) -> Any:
        await context.write(b"0")
        yield b"1"
        await context.write(b"2")
        await context.write(b"3")
        yield b"4"

    def exchange(target: LibraryTarget) -> tuple[Any, ...]:
        handler = server_streaming(mixes) if kind == "server_streaming" else bidi(mixes)
        answer = target.serve({"Mixes": handler}).connect().unary(path("Mixes"))
        return answer.status, answer.payloads

    asserts.parity(grpc_library, exchange, expected=(0, (b"0", b"1", b"2", b"3", b"4")))


def _after_write(target: LibraryTarget, kind: str) -> Answer:
    """The answer, as it settled, to a call whose handler of one response writes a message and returns another."""

    async def writes(request: Any, context: Any) -> bytes:
        await context.write(b"written")
        return b"returned"

    handler = unary(writes) if kind == "unary" else client_streaming(writes)
    connection = target.serve({"Writes": handler, "Echo": ECHO}).connect()
    return asserts.settled(connection, [connection.call(path("Writes"))], path("Echo"))[0]


@requirement("GRPC-CTX-15")
@pytest.mark.parametrize("kind", ["unary", "client_streaming"])
def test_write_in_unary_handler_ends(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST end a call whose unary handler uses `write()`."""
    answer = _after_write(grpc_library, kind)
    asserts.true("the call has ended", answer.ended, str(answer))


@requirement("GRPC-CTX-15")
def test_write_in_unary_handler_is_one_message(grpc_library: LibraryTarget) -> None:
    """The server MUST answer with an error or with one message where a unary handler uses `write()`."""
    answer = _after_write(grpc_library, "unary")
    if answer.status == 0:
        asserts.equal("the number of messages in a unary answer that is OK", 1, len(answer.payloads))
    else:
        asserts.fails(answer)


@requirement("GRPC-CTX-16")
def test_concurrent_writes_lose_nothing(grpc_library: LibraryTarget) -> None:
    """The server SHOULD serialise concurrent `write()` calls or raise, and lose nothing reported as sent."""
    messages = [b"%d " % number * 500 for number in range(20)]

    def exchange(target: LibraryTarget) -> list[bytes]:
        async def writes(request: bytes, context: Any) -> None:
            found = await asyncio.gather(*map(context.write, messages), return_exceptions=True)
            sent = [m for m, raised in zip(messages, found, strict=True) if raised is None]
            target.seen.note("sent", sent)

        answer = target.serve({"Writes": server_streaming(writes)}).connect().unary(path("Writes"))
        return [
            message for sent in target.seen.values("sent") for message in sent if answer.payloads.count(message) != 1
        ]

    asserts.parity(grpc_library, exchange, expected=[])
