"""A second, slow statement of the rules of stopping, written without looking at ``course.py``'s way of doing it.

It decodes whole byte strings again and again, and tries every end position of the text for every stop.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import (
    EndOfSequence,
    Finish,
    FinishReason,
    StopText,
    StopToken,
    Token,
)

LENGTH = Finish(FinishReason.LENGTH)


@dataclass
class Expected:
    """What a sequence must look like once some tokens have been played."""

    tokens: list[Token]
    text: str
    text_ends: list[int]
    finish: Finish | None


def visible(data: bytes) -> str:
    """The text of the bytes so far, without a character that is incomplete at the end."""
    for cut in range(min(3, len(data)), 0, -1):
        try:
            data[-cut:].decode()
        except UnicodeDecodeError as error:
            if error.start == 0 and error.reason == "unexpected end of data":
                return data[:-cut].decode(errors="replace")
    return data.decode(errors="replace")


def expect(
    played: Sequence[Token],
    parameters: GenerationParameters,
    eos_token_ids: frozenset[int],
    finish: Finish | None = None,
) -> Expected:
    """Play tokens one after the other; ``finish`` ends the sequence if nothing else has by then."""
    minimum = parameters.min_tokens or 0
    kept: list[Token] = []
    for token in played:
        if len(kept) >= minimum:
            if token.id in parameters.stop_token_ids:
                if parameters.include_stop:
                    kept.append(token)
                return ended(kept, Finish(FinishReason.STOP, StopToken(token.id)))
            if token.id in eos_token_ids and not parameters.ignore_eos:
                return ended(kept, Finish(FinishReason.STOP, EndOfSequence(token.id)))
        before = text_of(kept)
        kept.append(token)
        if len(kept) > minimum:
            match = first_match(text_of(kept), len(before), parameters.stop_texts)
            if match is not None:
                return stopped(kept, *match, parameters.include_stop)
        if len(kept) == parameters.max_tokens:
            return ended(kept, LENGTH)
    if finish is not None:
        return ended(kept, finish)
    return Expected(kept, text_of(kept), ends_of(kept), None)


def first_match(text: str, known: int, stops: Sequence[str]) -> tuple[str, int] | None:
    for end in range(known + 1, len(text) + 1):
        for stop in stops:
            if stop and text[:end].endswith(stop):
                return stop, end
    return None


def stopped(kept: list[Token], stop: str, end: int, include: bool) -> Expected:
    finish = Finish(FinishReason.STOP, StopText(stop))
    begins = [0, *ends_of(kept)][: len(kept)]
    if not include:
        end -= len(stop)
        kept = [token for token, begin in zip(kept, begins, strict=True) if begin < end]
    text = text_of(kept)[:end]
    return Expected(kept, text, [min(token_end, end) for token_end in ends_of(kept)], finish)


def ended(kept: list[Token], finish: Finish) -> Expected:
    data = b"".join(token.piece for token in kept)
    ends = ends_of(kept)
    text = data.decode(errors="replace")
    if text != visible(data):
        ends[-1] = len(text)
    return Expected(kept, text, ends, finish)


def text_of(tokens: Sequence[Token]) -> str:
    return visible(b"".join(token.piece for token in tokens))


def ends_of(tokens: Sequence[Token]) -> list[int]:
    return [len(text_of(tokens[: number + 1])) for number in range(len(tokens))]


def safe(text: str, stops: Sequence[str]) -> int:
    """The first position from which the rest of the text is a proper beginning of some stop."""
    for position in range(len(text)):
        rest = text[position:]
        if any(stop != rest and stop.startswith(rest) for stop in stops):
            return position
    return len(text)
