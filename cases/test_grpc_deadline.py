"""What `grpc-timeout` may look like, and what the handler sees of it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Sequence
from typing import Any

import grpc
import grpc.aio
import pytest

from pytest_grpc_conformance import wire_asserts as asserts
from pytest_grpc_conformance.marker import requirement
from pytest_grpc_conformance.targets.library import ECHO, LibraryTarget, Served, bidi, path, server_streaming, unary
from pytest_grpc_conformance.wire.answer import Answer
from pytest_grpc_conformance.wire.connection import request_fields

DAY = 86_400.0
YEAR = 365 * DAY
TOLERANCE = 1.0
"""Seconds by which a deadline of many seconds may be off, beside the time that the call was on its way."""
SHORT = (0.3, 1.2, 4.8)
"""Seconds of a short deadline; the longer ones are for a host on which the handler did not begin in time."""


def _remaining(target: LibraryTarget) -> Any:
    """A unary handler that notes when it was called and the time that it is given."""

    async def notes(request: bytes, context: Any) -> bytes:
        remaining = context.time_remaining()
        target.seen.note("remaining", (time.monotonic(), remaining))
        return request

    return unary(notes)


def _serve(target: LibraryTarget) -> Served:
    return target.serve({"Remaining": _remaining(target), "Echo": ECHO})


def _given(target: LibraryTarget) -> tuple[float, Any]:
    """When the handler was last called, and the time that it was given."""
    found: tuple[float, Any] = asserts.seen(target, "remaining")[-1]
    return found


def _about(sent_at: float, called_at: float, remaining: Any, seconds: float, tolerance: float = TOLERANCE) -> None:
    """The time that remains belongs to a deadline that began between sending and the handler's call."""
    asserts.true("the handler has a time that remains", isinstance(remaining, (int, float)), repr(remaining))
    least = seconds - (called_at - sent_at) - tolerance
    asserts.true(
        f"{max(0.0, least):.3f} to {seconds + tolerance:.3f} s remain",
        least <= remaining <= seconds + tolerance,
        remaining,
    )


def _with_timeouts(target: LibraryTarget, *values: str) -> Answer:
    """The answer to a call with these `grpc-timeout` fields, on a connection of its own."""
    served = _serve(target)
    connection = served.connect()
    fields = request_fields(path("Remaining"), metadata=[("grpc-timeout", value) for value in values])
    stream = connection.start(path("Remaining"), fields=fields)
    connection.send_message(stream, b"timed", end_stream=True)
    answer = asserts.answered(connection, stream)
    asserts.still_serves(served.connect(), path("Echo"))
    return answer


@requirement("GRPC-DL-01")
@pytest.mark.parametrize(
    ("value", "seconds"),
    [("1H", 3600), ("3M", 180), ("100S", 100), ("50000m", 50), ("40000000u", 40)],
    ids=["hours", "minutes", "seconds", "milliseconds", "microseconds"],
)
def test_timeout_is_given_in_each_unit(grpc_library: LibraryTarget, value: str, seconds: float) -> None:
    """The server MUST honour `grpc-timeout` in each unit, as the handler's `time_remaining()` shows."""
    sent_at = time.monotonic()
    answer = _with_timeouts(grpc_library, value)
    asserts.ended_with(answer, "OK")
    _about(sent_at, *_given(grpc_library), seconds)


@requirement("GRPC-DL-01")
def test_timeout_in_nanoseconds(grpc_library: LibraryTarget) -> None:
    """The server MUST take `n` in `grpc-timeout` for nanoseconds: the longest such deadline is under 0.1 s."""

    async def waits(request: bytes, context: Any) -> bytes:
        await asyncio.Event().wait()
        return b""

    connection = grpc_library.serve({"Waits": unary(waits)}).connect()
    sent_at = time.monotonic()
    answer = asserts.answered(connection, connection.call(path("Waits"), timeout="99999999n"))
    passed = time.monotonic() - sent_at
    asserts.true("the call ends by its deadline", answer.status == 4 or answer.reset is not None, str(answer))
    asserts.true("it does not end before 0.09 s have passed", passed >= 0.09, f"{passed:.4f} s")


@requirement("GRPC-DL-02")
def test_timeout_with_leading_zeros(grpc_library: LibraryTarget) -> None:
    """The server MUST accept leading zeros in a `grpc-timeout` of eight digits."""
    sent_at = time.monotonic()
    asserts.ended_with(_with_timeouts(grpc_library, "00000030S"), "OK")
    _about(sent_at, *_given(grpc_library), 30)


@requirement("GRPC-DL-02")
@pytest.mark.parametrize("value", ["99999999H", "99999999M", "99999999S"], ids=["hours", "minutes", "seconds"])
def test_longest_timeout_is_far_off(grpc_library: LibraryTarget, value: str) -> None:
    """The server MUST take a `grpc-timeout` of eight nines for a far-off deadline, without overflow."""
    asserts.ended_with(_with_timeouts(grpc_library, value), "OK")
    _, remaining = _given(grpc_library)
    asserts.true("more than a year remains", remaining is None or remaining > YEAR, repr(remaining))


@requirement("GRPC-DL-03")
@pytest.mark.parametrize("seconds", [0.0, pytest.param(3.0, marks=pytest.mark.nightly)], ids=["other", "three-seconds"])
def test_no_timeout_is_no_deadline(grpc_library: LibraryTarget, seconds: float) -> None:
    """The server MUST NOT end a call without `grpc-timeout`, when another call's deadline passes or at any time."""
    released = asyncio.Event()

    async def waits(request: bytes, context: Any) -> bytes:
        await released.wait()
        return request

    connection = grpc_library.serve({"Waits": unary(waits)}).connect()
    untimed = connection.call(path("Waits"), b"untimed")
    asserts.answered(connection, connection.call(path("Waits"), timeout="25m"))
    grpc_library.run(_set_after(released, seconds))
    answer = asserts.answered(connection, untimed)
    asserts.ended_with(answer, "OK")
    asserts.equal("the messages", (b"untimed",), answer.payloads)


async def _set_after(event: asyncio.Event, seconds: float) -> None:
    await asyncio.sleep(seconds)
    event.set()


@requirement("GRPC-DL-04")
@pytest.mark.parametrize("kind", ["unary", "stream", "bidi", "sync"])
def test_time_remaining_without_deadline(grpc_library: LibraryTarget, kind: str) -> None:
    """The server MUST give `None` as `time_remaining()` of a call without a deadline."""

    async def coroutine(request: bytes, context: Any) -> bytes:
        return repr(context.time_remaining()).encode()

    async def generator(request: Any, context: Any) -> Any:
        yield repr(context.time_remaining()).encode()

    def plain(request: bytes, context: Any) -> bytes:
        return repr(context.time_remaining()).encode()

    handlers = {
        "unary": unary(coroutine),
        "stream": server_streaming(generator),
        "bidi": bidi(generator),
        "sync": unary(plain),
    }

    def exchange(target: LibraryTarget) -> Any:
        connection = target.serve({"Remaining": handlers[kind]}).connect()
        return connection.unary(path("Remaining")).payloads

    asserts.parity(grpc_library, exchange, expected=(b"None",))


@requirement("GRPC-DL-05")
@pytest.mark.parametrize("timeout", [None, "100S"], ids=["deadline=no", "deadline=yes"])
def test_time_remaining_can_be_passed_on(grpc_library: LibraryTarget, timeout: str | None) -> None:
    """The server MUST give a `time_remaining()` that outgoing calls and asyncio's timeouts take as it is."""

    def exchange(target: LibraryTarget) -> Any:
        address: list[str] = []

        async def nested(request: bytes, context: Any) -> bytes:
            async with grpc.aio.insecure_channel(address[0]) as channel:
                method: Any = channel.unary_unary
                echo = method(path("Echo"))
                return bytes(await echo(request + b" by call", timeout=context.time_remaining()))

        async def waited(request: bytes, context: Any) -> bytes:
            # A future: of a coroutine that a faulty timeout keeps from being awaited Python would warn.
            given: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()
            given.set_result(request + b" by wait_for")
            if hasattr(asyncio, "timeout"):
                async with asyncio.timeout(context.time_remaining()):
                    await asyncio.sleep(0)
            return await asyncio.wait_for(given, context.time_remaining())

        served = target.serve({"Nested": unary(nested), "Waited": unary(waited), "Echo": ECHO})
        address.append(served.address)
        connection = served.connect()
        answers = [connection.unary(path(method), b"passed", timeout=timeout) for method in ("Nested", "Waited")]
        return [(answer.status, answer.payloads) for answer in answers]

    expected = [(0, (b"passed by call",)), (0, (b"passed by wait_for",))]
    asserts.parity(grpc_library, exchange, expected=expected)


@requirement("GRPC-DL-06")
def test_time_remaining_falls_to_zero(grpc_library: LibraryTarget) -> None:
    """The server MUST give a `time_remaining()` that falls monotonically and stays at zero after expiry."""

    def exchange(target: LibraryTarget) -> Any:
        async def reads(request: bytes, context: Any) -> bytes:
            began = time.monotonic()
            found = [context.time_remaining()]
            while time.monotonic() < began + found[0] + 0.05:
                try:
                    await asyncio.sleep(0.01)
                except asyncio.CancelledError:
                    target.seen.note("cancelled")
                found.append(context.time_remaining())
            target.seen.note("remaining", found)
            return b""

        connection = target.serve({"Reads": unary(reads)}).connect()
        connection.call(path("Reads"), timeout="100m")
        found: Sequence[float] = target.seen.wait("remaining", target.timeout)[0]
        falls = all(later <= earlier for earlier, later in itertools.pairwise(found))
        return {"falls": falls, "never negative": min(found) >= 0, "last": found[-1]}

    expected = {"falls": True, "never negative": True, "last": 0}
    asserts.parity(grpc_library, exchange, expected=expected)


MALFORMED = {
    "no-unit": "5",
    "no-digits": "S",
    "empty": "",
    "negative": "-5S",
    "fraction": "1.5S",
    "unknown-unit": "5x",
    "lower-case": "5s",
    "two-units": "5Sm",
}


@requirement("GRPC-DL-14")
@pytest.mark.parametrize("value", list(MALFORMED.values()), ids=list(MALFORMED))
def test_malformed_timeout_fails_the_call(grpc_library: LibraryTarget, value: str) -> None:
    """The server SHOULD fail a call with a malformed `grpc-timeout`, which does not mean "no deadline"."""

    def exchange(target: LibraryTarget) -> Any:
        answer = _with_timeouts(target, value)
        return "the call fails" if answer.status != 0 else "the call succeeds"

    asserts.parity(grpc_library, exchange, expected="the call fails")


@requirement("GRPC-DL-15")
@pytest.mark.parametrize("value", ["+5S", " 5S", "5 S"], ids=["sign", "space-before", "space-inside"])
def test_sign_or_space_in_timeout_fails_the_call(grpc_library: LibraryTarget, value: str) -> None:
    """The server SHOULD take a sign or white space in `grpc-timeout` for malformed, and fail the call."""
    asserts.fails(_with_timeouts(grpc_library, value))


@requirement("GRPC-DL-16")
@pytest.mark.parametrize("value", ["100000000S", "4294967297S"], ids=["digits=9", "digits=10"])
def test_overlong_timeout_is_not_a_short_one(grpc_library: LibraryTarget, value: str) -> None:
    """The server SHOULD refuse or clamp a `grpc-timeout` of over eight digits, and never make it a short deadline."""

    def exchange(target: LibraryTarget) -> Any:
        answer = _with_timeouts(target, value)
        if answer.status != 0:
            return "not short" if answer.status != 4 else "DEADLINE_EXCEEDED"
        _, remaining = _given(target)
        return "not short" if remaining is None or remaining > DAY else f"{remaining} s remain"

    asserts.parity(grpc_library, exchange, expected="not short")


@requirement("GRPC-DL-17")
@pytest.mark.parametrize("values", [("100S", "200S"), ("200S", "100S")], ids=["rising", "falling"])
def test_two_timeouts(grpc_library: LibraryTarget, values: tuple[str, str]) -> None:
    """The server SHOULD apply one of two `grpc-timeout` fields or fail the call, and go on serving."""
    sent_at = time.monotonic()
    answer = _with_timeouts(grpc_library, *values)
    if answer.status != 0:
        asserts.fails(answer)
        return
    called_at, remaining = _given(grpc_library)
    _about(sent_at, called_at, remaining, 100 if isinstance(remaining, float) and remaining < 150 else 200)


@requirement("GRPC-DL-19")
@pytest.mark.parametrize("tries", [SHORT, (3.0,), (YEAR,)], ids=["0.3s", "3s", "year"])
def test_stock_deadline_reaches_the_handler(grpc_library: LibraryTarget, tries: Sequence[float]) -> None:
    """The server MUST give the handler the deadline that a stock client set."""
    served = _serve(grpc_library)
    for seconds in tries:
        sent_at = time.monotonic()
        outcome = served.call("Remaining", timeout=seconds)
        if outcome.code == "OK":
            break
    asserts.equal("the status", "OK", outcome.code)
    _about(sent_at, *_given(grpc_library), seconds, tolerance=max(0.1, 0.01 * seconds))
