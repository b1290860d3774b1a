"""Faults that a client who reads fields does not see, but bytes show."""

from __future__ import annotations

from pytest_grpc_conformance import golden
from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import each, is_end
from tests.faults.plant import Mutant
from tests.faults.table import Fault

UNKNOWN_FIELD = b"\xc0\xbb\x3a\x01"
"""Field 120,000, a varint of 1."""


def _mark(message: Message) -> None:
    if is_end(message):
        message.MergeFromString(UNKNOWN_FIELD)


def _mark_in_python(message: Message) -> None:
    if golden.backend() == "python":
        _mark(message)


sends_an_unknown_field = Mutant(generate=each(_mark))
differs_in_the_python_back_end = Mutant(generate=each(_mark_in_python))

FAULTS = (
    Fault(
        "sends_an_unknown_field",
        caught_by={"golden/openengine_messages": "OE-TOK-001"},
        protocols=("openengine",),
    ),
    Fault("sends_an_unknown_field", caught_by={"golden/smg_messages": "SMG-CHK-001"}, protocols=("smg",)),
    Fault("differs_in_the_python_back_end", caught_by={"golden/other_backend": "OE-TOK-002 SMG-CHK-001"}),
)
