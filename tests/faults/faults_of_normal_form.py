"""Faults that compose characters: delta by delta, or over the deltas of a stream. SMG carries no text."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable, Iterable

from pytest_grpc_conformance.protocols.base import Message
from tests.faults.alterations import body, each, has_tokens, is_end, streamed
from tests.faults.plant import Call, Mutant
from tests.faults.table import Fault


def _compose(message: Message) -> None:
    if has_tokens(message):
        body(message).text = unicodedata.normalize("NFC", body(message).text)


def _compose_over_deltas(call: Call) -> Callable[[Message], Iterable[Message]]:
    """The last character waits for the next delta, which may hold a mark that it is composed with."""
    held = ""

    def step(message: Message) -> Iterable[Message]:
        nonlocal held
        if is_end(message) and held:
            rest = call.wire.generate.response(request_id=call.request.request_id)
            rest.token.output_index = 0
            rest.token.text = held
            return (rest, message)
        if has_tokens(message):
            text = unicodedata.normalize("NFC", held + body(message).text)
            body(message).text, held = text[:-1], text[-1:]
        return (message,)

    return step


composes_each_delta = Mutant(generate=each(_compose))
composes_over_deltas = Mutant(generate=streamed(_compose_over_deltas))

FAULTS = tuple(
    Fault(mutant, caught_by={"normal_form/text_keeps_its_normal_form": "OE-TOK-003"}, protocols=("openengine",))
    for mutant in ("composes_each_delta", "composes_over_deltas")
)
