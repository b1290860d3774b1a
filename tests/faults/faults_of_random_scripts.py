"""Faults that show only under an unlikely script."""

from __future__ import annotations

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import each, has_tokens, index_of, records
from tests.faults.plant import Mutant
from tests.faults.table import Fault


def _lose_the_fourth(message: Message) -> None:
    if has_tokens(message) and index_of(message) == 1 and len(records(message)) >= 4:
        del records(message)[3]


loses_the_fourth_token_of_a_step_of_the_second_sequence = Mutant(generate=each(_lose_the_fourth))

FAULTS = (
    Fault(
        "loses_the_fourth_token_of_a_step_of_the_second_sequence",
        caught_by={"random_scripts/any_script_gives_its_outcome": "OE-TOK-001 SMG-CHK-003"},
    ),
)
