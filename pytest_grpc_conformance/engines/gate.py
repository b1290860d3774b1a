"""A gate holds the steps of one script until the test releases them, and shows how far each side is."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_grpc_conformance.engines.milestone import Milestone, Noticeboard
from pytest_grpc_conformance.engines.script import AbortConduct, Ending, Script

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.generation import GatedGeneration

REFUSAL_KINDS = ("invalid", "full", "down")
FAILURE_KINDS = ("failure", "invalid", "full")


class EngineMisuse(RuntimeError):
    """The test asked of the fake engine what it cannot do: a fault of the test, never of the server."""


@dataclass(frozen=True, slots=True)
class GatePosition:
    """How far a request has come, counted in steps (``Gate.steps``), and how often it was aborted."""

    steps: int
    released: int
    produced: int
    taken: int
    aborts: int

    def __str__(self) -> str:
        return (
            f"steps {self.steps}, released {self.released}, produced {self.produced}, "
            f"taken {self.taken}, aborts {self.aborts}"
        )


class Gate:
    """Holds the steps of one script; ``GatedEngine.prepare`` makes it.

    Everything is counted in steps. ``steps`` is how many there are to release: the steps of the script, and
    one more for an ending that no step brings about (``Ending.NOTHING``, ``Ending.FAILURE``, and the finish
    of a script without steps). ``released`` counts what the test let go, also before the submission.
    ``produced`` counts what the engine has handed over for it, ``taken`` what the servicer has received of
    that; an ending that is a step is taken when iteration ends or raises. The last result of an abort is no
    step and is not counted, and so is the error that an engine ends with.

    A stop, ``max_tokens`` or an abort can end the request before its last step. The steps that are left may
    still be released, without effect.
    """

    __slots__ = (
        "_abort_released",
        "_board",
        "_lock",
        "_settled",
        "_submitted",
        "_timeout",
        "_wake",
        "abort_calls",
        "end_at",
        "generation",
        "produced",
        "released",
        "request_id",
        "script",
        "steps",
        "taken",
    )

    def __init__(
        self,
        request_id: str | None,
        script: Script,
        *,
        board: Noticeboard,
        lock: threading.Lock,
        timeout: float,
    ) -> None:
        self.request_id = request_id
        """``None`` until the submission, for a script that waits for any request."""
        self.script = script
        self.steps = _releasable(script)
        self.released = self.produced = self.taken = self.abort_calls = 0
        self.generation: GatedGeneration | None = None
        """The handle that the servicer got; ``None`` before the submission and when it was refused."""
        self._board = board
        self._lock = lock
        self._timeout = timeout
        self._submitted = self._settled = self._abort_released = False
        self.end_at: int | None = None
        """Where the request ends from outside (abort, kill, close): no step after this many is produced."""
        self._wake: Callable[[], None] | None = None

    def __str__(self) -> str:
        stage = "" if self._submitted else ", not submitted"
        return f"{self._who()}: {self.position}{', settled' if self._settled else stage}"

    @property
    def position(self) -> GatePosition:
        """A snapshot, for messages."""
        return GatePosition(self.steps, self.released, self.produced, self.taken, self.abort_calls)

    def release(self, n: int = 1) -> None:
        """Let ``n`` more steps go, from any thread; they cross to the servicer's loop in one batch.

        Raises ``EngineMisuse`` when that makes more than the script has.
        """
        if n < 0:
            raise EngineMisuse(f"release({n}): what is released stays released")
        with self._lock:
            released = self.released + n
            if released > self.steps:
                raise EngineMisuse(
                    f"released {released}, but the script of {self._who()} has {_count(self.steps, 'step')}"
                )
            self.released = released
            self._tell()

    def release_all(self) -> None:
        """Let every step go that is not released yet."""
        with self._lock:
            self.released = self.steps
            self._tell()

    def release_abort(self) -> None:
        """Let the engine carry out an abort that it takes slowly; it may be called before the abort is.

        Raises ``EngineMisuse`` when the script's conduct is not ``AbortConduct.SLOW``.
        """
        if self.script.abort is not AbortConduct.SLOW:
            raise EngineMisuse(f"the script of {self._who()} does not take an abort slowly")
        with self._lock:
            self._abort_released = True
            if self.abort_calls:
                self.end_here()

    def submitted(self) -> Milestone:
        """A submission has got this script (if only to be refused by it)."""
        return self._milestone("submitted()", lambda: self._submitted)

    def delivered(self, n: int) -> Milestone:
        """The servicer has taken ``n`` steps.

        Raises ``EngineMisuse`` when the script has fewer.
        """
        if n > self.steps:
            raise EngineMisuse(f"delivered({n}) of {self._who()}, whose script has {_count(self.steps, 'step')}")
        return self._milestone(f"delivered({n})", lambda: self.taken >= n)

    def aborted(self) -> Milestone:
        """An abort has reached the engine, whatever it made of it."""
        return self._milestone("aborted()", lambda: self.abort_calls > 0)

    def settled(self) -> Milestone:
        """The engine has let go of the request: finished, failed, lost, refused, or its abort carried out.

        Its last result may still wait to be taken.
        """
        return self._milestone("settled()", lambda: self._settled)

    def drained(self) -> Milestone:
        """Everything that is released (and that the request still yields) has been taken."""
        return self._milestone("drained()", self._is_drained)

    def _is_drained(self) -> bool:
        return self.taken == self.produced and (self._settled or self.produced == self.released)

    def _milestone(self, name: str, reached: Callable[[], bool]) -> Milestone:
        title = f"{name} of {self._who()}"
        return Milestone(title, self._timeout, self._board, self, reached, lambda: self.position)

    def _who(self) -> str:
        return "the next request" if self.request_id is None else repr(self.request_id)

    def _tell(self) -> None:
        if self._wake is not None:
            self._wake()

    # The engine's side. It holds the lock meanwhile, and notifies the board afterwards.

    def attach(self, generation: GatedGeneration | None, wake: Callable[[], None] | None) -> None:
        """A submission has got the script; ``wake`` tells the engine to look at it again."""
        self.generation = generation
        self._submitted = True
        self._wake = wake
        if self.released:
            self._tell()

    def settle(self) -> None:
        """The engine has let go of the request."""
        self._settled = True

    def take_abort(self, *, in_time: bool) -> bool:
        """Count an abort, and begin what it leads to if it came ``in_time``; true when it is refused."""
        self.abort_calls += 1
        conduct = self.script.abort
        if not in_time or conduct is AbortConduct.REFUSE:
            return in_time
        if conduct is not AbortConduct.SLOW or self._abort_released:
            self.end_here()
        return False

    def end_here(self) -> None:
        """What is released so far is still produced, nothing after it. The first call counts."""
        if self.end_at is None:
            self.end_at = self.released
            self._tell()


def check_script(script: object) -> None:
    """Raise ``EngineMisuse`` for what the engine cannot play: it would silently play something else."""
    if not isinstance(script, Script):
        raise EngineMisuse(f"a script is needed, not {script!r}")
    if script.refusal is not None and script.refusal.kind not in REFUSAL_KINDS:
        raise EngineMisuse(f"unknown kind of refusal {script.refusal.kind!r}; known: {', '.join(REFUSAL_KINDS)}")
    if script.failure_kind not in FAILURE_KINDS:
        raise EngineMisuse(f"unknown kind of failure {script.failure_kind!r}; known: {', '.join(FAILURE_KINDS)}")
    over: set[int] = set()
    for number, step in enumerate(script.steps):
        seen: set[int] = set()
        for advance in step.advances:
            fault = (
                "has a negative index"
                if advance.index < 0
                else "is advanced twice"
                if advance.index in seen
                else "is advanced after its finish"
                if advance.index in over
                else None
            )
            if fault is not None:
                raise EngineMisuse(f"step {number} of the script: sequence {advance.index} {fault}")
            seen.add(advance.index)
            if advance.finish is not None:
                over.add(advance.index)


def _releasable(script: Script) -> int:
    own_step = script.ending is not Ending.LENGTH or not script.steps
    return len(script.steps) + own_step


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
