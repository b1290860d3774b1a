"""Faults of deadlines: how `grpc-timeout` is read, what handlers see of it, and what happens once it has passed."""

from __future__ import annotations

import asyncio
import datetime
import re
import time
from collections.abc import Sequence
from typing import Any

from pytest_grpc_conformance.wire.frames import Kind
from tests.faults.faulty_library import FaultyContext, FaultyLibrary
from tests.faults.frame_proxy import Fields, FrameFault, Passing
from tests.faults.plant import Mutant
from tests.faults.request_fault import RequestFault, cancelled_again, changing, thrown_as
from tests.faults.table import WIRE, Fault


def _timeouts(change: Any) -> Mutant:
    """A server that reads the values of `grpc-timeout` in another way."""
    return Mutant(library=FaultyLibrary(frames=changing("grpc-timeout", change)))


def _in_32_bits(value: str) -> str:
    """The seconds as milliseconds in an unsigned integer of 32 bits."""
    unit = {"H": 3_600_000, "M": 60_000, "S": 1000}.get(value[-1])
    return f"{int(value[:-1]) * unit % (1 << 32) // 1000 or 1}S" if unit else value


timeout_is_ignored = _timeouts(lambda value: None)
microseconds_are_milliseconds = _timeouts(lambda value: value.replace("u", "m"))
nanoseconds_are_cut_to_one = _timeouts(lambda value: "1n" if value.endswith("n") else value)
leading_zero_means_octal = _timeouts(lambda v: f"{int(v[:-1], 8)}{v[-1]}" if re.fullmatch("0[0-7]+.", v) else v)
timeout_in_32_bits = _timeouts(_in_32_bits)
zero_means_no_deadline = _timeouts(lambda value: value if value[:-1].strip("0") else None)
malformed_timeout_is_ignored = _timeouts(lambda value: value if re.fullmatch("[0-9]+[HMSmun]", value) else None)
sign_and_space_are_skipped = _timeouts(lambda value: re.sub("[+ ]", "", value))


class DefaultTimeout(RequestFault):
    def request(self, fields: Fields) -> Fields:
        return fields if b"grpc-timeout" in dict(fields) else (*fields, (b"grpc-timeout", b"10m"))


class TimeoutsAreAdded(RequestFault):
    def request(self, fields: Fields) -> Fields:
        values = [value for name, value in fields if name == b"grpc-timeout"]
        if len(values) < 2:
            return fields
        total = sum(int(value[:-1]) for value in values)
        return (*(item for item in fields if item[0] != b"grpc-timeout"), (b"grpc-timeout", b"%dS" % total))


class AsTimedelta(FaultyContext):
    def time_remaining(self) -> Any:
        remaining = self._real.time_remaining()
        return None if remaining is None else datetime.timedelta(seconds=remaining)


class InfiniteWithout(FaultyContext):
    def time_remaining(self) -> Any:
        remaining = self._real.time_remaining()
        return float(2**63) if remaining is None else remaining


class BelowZero(FaultyContext):
    def __init__(self, real: Any) -> None:
        super().__init__(real)
        self._until = time.monotonic() + (real.time_remaining() or 0)

    def time_remaining(self) -> Any:
        return self._until - time.monotonic()


class ExpiryAsCancelled(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        expired = passing.is_trailers and (b"grpc-status", b"4") in (passing.fields or ())
        return [passing.with_field("grpc-status", "1") if expired else passing]


class MessageAfterExpiry(FrameFault):
    def from_server(self, passing: Passing) -> Sequence[Passing]:
        if passing.is_trailers and (b"grpc-status", b"4") in (passing.fields or ()):
            return [passing, Passing(Kind.DATA, 0, passing.stream, b"\0\0\0\0\4late")]
        return [passing]


def _timeout_error(error: BaseException) -> BaseException:
    return TimeoutError() if isinstance(error, asyncio.CancelledError) else error


default_timeout = Mutant(library=FaultyLibrary(frames=DefaultTimeout))
timeouts_are_added = Mutant(library=FaultyLibrary(frames=TimeoutsAreAdded))
time_remaining_is_timedelta = Mutant(library=FaultyLibrary(context=AsTimedelta))
time_remaining_is_huge_without_deadline = Mutant(library=FaultyLibrary(context=InfiniteWithout))
time_remaining_below_zero = Mutant(library=FaultyLibrary(context=BelowZero))
expiry_is_cancelled = Mutant(library=FaultyLibrary(frames=ExpiryAsCancelled))
message_after_expiry = Mutant(library=FaultyLibrary(frames=MessageAfterExpiry))
expiry_raises_timeout_error = Mutant(library=FaultyLibrary(handler=thrown_as(_timeout_error)))
expiry_cancels_again = Mutant(library=FaultyLibrary(handler=cancelled_again))

SEEN = "grpc_deadline"
EXPIRY = "grpc_deadline_expiry"

FAULTS = (
    Fault(
        "timeout_is_ignored",
        caught_by={
            f"{SEEN}/timeout_is_given_in_each_unit": "GRPC-DL-01",
            f"{SEEN}/timeout_with_leading_zeros": "GRPC-DL-02",
            f"{SEEN}/two_timeouts": "GRPC-DL-17",
            f"{SEEN}/stock_deadline_reaches_the_handler": "GRPC-DL-19",
            f"{EXPIRY}/expiry_ends_the_call": "GRPC-DL-07",
        },
        protocols=WIRE,
    ),
    Fault(
        "microseconds_are_milliseconds",
        caught_by={f"{SEEN}/timeout_is_given_in_each_unit": "GRPC-DL-01"},
        protocols=WIRE,
    ),
    Fault("nanoseconds_are_cut_to_one", caught_by={f"{SEEN}/timeout_in_nanoseconds": "GRPC-DL-01"}, protocols=WIRE),
    Fault("leading_zero_means_octal", caught_by={f"{SEEN}/timeout_with_leading_zeros": "GRPC-DL-02"}, protocols=WIRE),
    Fault(
        "timeout_in_32_bits",
        caught_by={
            f"{SEEN}/longest_timeout_is_far_off": "GRPC-DL-02",
            f"{SEEN}/overlong_timeout_is_not_a_short_one": "GRPC-DL-16",
            f"{SEEN}/stock_deadline_reaches_the_handler": "GRPC-DL-19",
        },
        protocols=WIRE,
    ),
    Fault("zero_means_no_deadline", caught_by={f"{EXPIRY}/timeout_of_zero": "GRPC-DL-13"}, protocols=WIRE),
    Fault(
        "malformed_timeout_is_ignored",
        caught_by={
            f"{SEEN}/malformed_timeout_fails_the_call": "GRPC-DL-14",
            f"{SEEN}/sign_or_space_in_timeout_fails_the_call": "GRPC-DL-15",
        },
        protocols=WIRE,
    ),
    Fault(
        "sign_and_space_are_skipped",
        caught_by={f"{SEEN}/sign_or_space_in_timeout_fails_the_call": "GRPC-DL-15"},
        protocols=WIRE,
    ),
    Fault("default_timeout", caught_by={f"{SEEN}/no_timeout_is_no_deadline": "GRPC-DL-03"}, protocols=WIRE),
    Fault("timeouts_are_added", caught_by={f"{SEEN}/two_timeouts": "GRPC-DL-17"}, protocols=WIRE),
    Fault(
        "time_remaining_is_timedelta",
        caught_by={f"{SEEN}/time_remaining_can_be_passed_on": "GRPC-DL-05"},
        protocols=WIRE,
    ),
    Fault(
        "time_remaining_is_huge_without_deadline",
        caught_by={f"{SEEN}/time_remaining_without_deadline": "GRPC-DL-04"},
        protocols=WIRE,
    ),
    Fault(
        "time_remaining_below_zero",
        caught_by={f"{SEEN}/time_remaining_falls_to_zero": "GRPC-DL-06"},
        protocols=WIRE,
    ),
    Fault(
        "expiry_is_cancelled",
        caught_by={
            f"{EXPIRY}/expiry_ends_the_call": "GRPC-DL-07",
            f"{EXPIRY}/expiry_ends_a_call_without_message": "GRPC-DL-08",
            f"{EXPIRY}/expiry_ends_a_call_without_window": "GRPC-DL-09",
            f"{EXPIRY}/handler_that_goes_on_after_expiry": "GRPC-DL-11",
            f"{EXPIRY}/timeout_of_zero": "GRPC-DL-13",
            f"{EXPIRY}/expiry_ends_the_call_of_a_sync_handler": "GRPC-DL-18",
            f"{EXPIRY}/expiry_in_an_interceptor": "GRPC-DL-20",
            f"{EXPIRY}/expiry_of_a_request_stream": "GRPC-DL-21",
        },
        protocols=WIRE,
    ),
    Fault(
        "message_after_expiry",
        caught_by={f"{EXPIRY}/handler_that_goes_on_after_expiry": "GRPC-DL-12"},
        protocols=WIRE,
    ),
    Fault(
        "expiry_raises_timeout_error",
        caught_by={
            f"{EXPIRY}/expiry_cancels_the_handler": "GRPC-DL-10",
            f"{EXPIRY}/expiry_of_a_request_stream": "GRPC-DL-21",
        },
        protocols=WIRE,
    ),
    Fault(
        "expiry_cancels_again",
        caught_by={f"{EXPIRY}/expiry_lets_clean_up_run": "GRPC-DL-10"},
        protocols=WIRE,
    ),
)
