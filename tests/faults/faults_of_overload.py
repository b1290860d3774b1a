"""Faults in what a failure says about trying again: overload told as a fault, or a word that is the same for all."""

from __future__ import annotations

from collections.abc import Callable

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import each, engine_told, kind
from tests.faults.plant import Mutant
from tests.faults.table import Fault

OPENENGINE = ("openengine",)


def _always(retryable: bool) -> Callable[[Message], None]:
    def change(message: Message) -> None:
        if kind(message) == "error":
            message.error.retryable = retryable

    return change


calls_no_error_retryable = Mutant(generate=each(_always(False)))
calls_every_error_retryable = Mutant(generate=each(_always(True)))
takes_overload_for_a_fault = Mutant(engine=engine_told(lambda script: script.but(failure_kind="failure")))

_RETRYABLE = {"errors/retryable_is_true_when_a_retry_can_help": "OE-ERR-011"}

FAULTS = (
    Fault("calls_no_error_retryable", caught_by=_RETRYABLE, protocols=OPENENGINE),
    Fault("calls_every_error_retryable", caught_by=_RETRYABLE, protocols=OPENENGINE),
    Fault(
        "takes_overload_for_a_fault",
        caught_by={"errors/request_that_is_shed_says_overload": "OE-ERR-013 SMG-ERR-006"},
    ),
)
