"""A whole stream, joined: what a client holds of each sequence once the status is there."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from pytest_grpc_conformance.engines.script import EndOfSequence, Token
from pytest_grpc_conformance.protocols.base import (
    ErrorEvent,
    FinishEvent,
    PromptEvent,
    Received,
    Status,
    TokensEvent,
    Usage,
)


@dataclass(slots=True)
class SequenceReceived:
    """What came for one sequence index, in the order in which it came."""

    tokens: list[Token] = field(default_factory=list)
    text: str = ""
    finishes: list[FinishEvent] = field(default_factory=list)
    token_messages: int = 0
    after_finish: int = 0
    """Token messages that came after the sequence had finished."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        return tuple(token.id for token in self.tokens)


@dataclass(frozen=True, slots=True)
class Collected:
    """Every message of a stream, and its status."""

    received: tuple[Received, ...]
    status: Status
    sequences: dict[int | None, SequenceReceived]
    prompts: tuple[PromptEvent, ...]
    errors: tuple[ErrorEvent, ...]

    @property
    def usages(self) -> tuple[tuple[int, Usage], ...]:
        """Each usage with the position of the message that carries it."""
        return tuple((at, r.event.usage) for at, r in enumerate(self.received) if r.event.usage is not None)


def collect(received: Sequence[Received], status: Status) -> Collected:
    """Join the messages of a stream per sequence index."""
    sequences: dict[int | None, SequenceReceived] = {}
    for item in received:
        event = item.event
        if isinstance(event, TokensEvent):
            sequence = sequences.setdefault(event.index, SequenceReceived())
            sequence.tokens.extend(event.tokens)
            sequence.text += event.text or ""
            sequence.token_messages += 1
            sequence.after_finish += bool(sequence.finishes)
        elif isinstance(event, FinishEvent):
            sequences.setdefault(event.index, SequenceReceived()).finishes.append(event)
    for sequence in sequences.values():
        _drop_end_record(sequence)
    return Collected(
        tuple(received),
        status,
        sequences,
        tuple(r.event for r in received if isinstance(r.event, PromptEvent)),
        tuple(r.event for r in received if isinstance(r.event, ErrorEvent)),
    )


def _drop_end_record(sequence: SequenceReceived) -> None:
    """Whether the record of the id that ended a sequence is shown is open (OE-TOK-014), so it is not kept."""
    match = sequence.finishes[-1].finish.match if sequence.finishes and sequence.finishes[-1].finish else None
    if isinstance(match, EndOfSequence) and sequence.tokens and sequence.tokens[-1].id == match.token_id:
        sequence.tokens.pop()
