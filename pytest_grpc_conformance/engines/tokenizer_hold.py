"""Holds prompts in the fake engine's tokenizer, so that a test can do something while one is being tokenized."""

from __future__ import annotations

import threading

from pytest_grpc_conformance.engines.milestone import Milestone, Noticeboard, runs_a_loop


class TokenizerHold:
    """``GatedEngine.hold_tokenizer`` gives it. It may be used from any thread."""

    def __init__(self, board: Noticeboard, timeout: float) -> None:
        self._board = board
        self._timeout = timeout
        self._open = threading.Event()
        self._open.set()
        self._texts: list[str] = []

    def hold(self) -> None:
        """Keep what comes from now on."""
        self._open.clear()

    def release(self) -> None:
        """Let go of every prompt, and hold no more."""
        self._open.set()

    def entered(self, text: str) -> Milestone:
        """The tokenizer has been given a text."""
        return Milestone(
            f"entered({text!r}) of the tokenizer",
            self._timeout,
            self._board,
            self,
            lambda: text in self._texts,
            lambda: f"it was given {len(self._texts)} texts",
        )

    def enter(self, text: str) -> None:
        """The engine's side: a text is given to the tokenizer.

        On a running event loop it is not held: a servicer that tokenizes there serves nobody else meanwhile, so a test
        could not do anything before the release.
        """
        if self._open.is_set():
            return
        self._texts.append(text)
        self._board.notice(self)
        if not runs_a_loop():
            self._open.wait(self._timeout)
