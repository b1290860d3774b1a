"""Which part of a sequence may be shown: deltas cannot be taken back, so a possible excluded stop is held."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_grpc_conformance.engines.base import SequenceState
from pytest_grpc_conformance.engines.course import safe_length, tokens_before_text
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Token


def held_stops(parameters: GenerationParameters) -> tuple[str, ...]:
    """The stop strings whose beginnings have to be held back; none when the stop stays in the output."""
    return () if parameters.include_stop else parameters.stop_texts


class Progress:
    """How much of one sequence its client has got.

    A token record is shown once its text begins before the first character that may belong to a stop. So a
    token without text of its own (half a character) waits for the next one, which may begin the stop.
    """

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.finished = False
        self._stops = stops
        self._tokens = 0
        self._text = 0

    def take(self, state: SequenceState) -> tuple[list[Token], str]:
        """What may be shown now and has not been; remembers it as shown.

        Of a finished sequence that is all the rest. The engine may have cut the lists by then: what is shown
        already stays shown and is not sent again.
        """
        tokens, text = len(state.tokens), len(state.text)
        if self._stops and state.finish is None:
            text = safe_length(state.text, self._stops)
            tokens = self._tokens_before(state.text_ends, text)
        fresh = state.tokens[self._tokens : tokens], state.text[self._text : text]
        self._tokens, self._text = max(self._tokens, tokens), max(self._text, text)
        return fresh

    def _tokens_before(self, text_ends: Sequence[int], position: int) -> int:
        """``tokens_before_text``, looking only at what is not shown yet."""
        shown = self._tokens
        if len(text_ends) <= shown:
            return shown
        base = text_ends[shown - 1] if shown else 0
        return shown + tokens_before_text([end - base for end in text_ends[shown:]], position - base)
