"""Points that a test waits for: from a thread by blocking, on an event loop by awaiting.

Whoever changes what a milestone looks at tells the notice board; nothing polls. A milestone that is not
reached within its time raises ``DeadlineMissed`` and says where things stood.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass, replace

from pytest_grpc_conformance.engines.base import EngineDown


class DeadlineMissed(TimeoutError):
    """A milestone was not reached in time; the message says what was waited for and where it stood."""


class _Waiter:
    """One wait in progress. ``met`` latches, as what was reached may pass again before the waiter runs."""

    __slots__ = ("met", "reached", "wake")

    def __init__(self, reached: Callable[[], bool], wake: Callable[[], None]) -> None:
        self.reached = reached
        self.wake = wake
        self.met = False


class Noticeboard:
    """Who waits for a change of which subject. Safe from all threads.

    ``waiting`` is empty while nobody waits, so a busy caller can ask it before it calls ``notice``. A waiter
    registers before it looks, so a change is seen by one of the two in any case.
    """

    def __init__(self) -> None:
        self.waiting: dict[object, list[_Waiter]] = {}
        self.closed = False
        self._lock = threading.Lock()

    def notice(self, subject: object) -> None:
        """Something about ``subject`` has changed: wake those whose milestone is reached now."""
        if subject not in self.waiting:
            return
        with self._lock:
            met = [waiter for waiter in self.waiting.get(subject, ()) if waiter.reached()]
            for waiter in met:
                waiter.met = True
                self._drop(subject, waiter)
        for waiter in met:
            waiter.wake()

    def close(self) -> None:
        """Nothing will change any more: wake everybody."""
        with self._lock:
            self.closed = True
            left = [waiter for waiters in self.waiting.values() for waiter in waiters]
            self.waiting.clear()
        for waiter in left:
            waiter.wake()

    def add(self, subject: object, waiter: _Waiter) -> None:
        with self._lock:
            self.waiting.setdefault(subject, []).append(waiter)

    def remove(self, subject: object, waiter: _Waiter) -> None:
        with self._lock:
            self._drop(subject, waiter)

    def _drop(self, subject: object, waiter: _Waiter) -> None:
        waiters = self.waiting.get(subject, [])
        if waiter in waiters:
            waiters.remove(waiter)
            if not waiters:
                del self.waiting[subject]


@dataclass(frozen=True, slots=True)
class Milestone:
    """Something that will have happened: ``await`` it, or ``wait()`` for it in a thread without a loop.

    Both return once it is reached (at once if it is already). They raise ``DeadlineMissed`` after ``timeout``
    seconds, and ``EngineDown`` as soon as the engine is closed. One milestone may be waited for any number of
    times, from any threads and loops.
    """

    name: str
    """What is waited for, as messages say it: ``delivered(2) of 'r1'``."""
    timeout: float
    """Seconds."""
    _board: Noticeboard
    _subject: object
    _reached: Callable[[], bool]
    _position: Callable[[], object]

    @property
    def reached(self) -> bool:
        """Whether it is reached now."""
        return self._reached()

    def within(self, seconds: float) -> Milestone:
        """The same milestone with another deadline."""
        return replace(self, timeout=seconds)

    def wait(self, timeout: float | None = None) -> None:
        """Block until it is reached, for ``timeout`` seconds instead of the milestone's own if given.

        Raises ``RuntimeError`` in a thread with a running event loop, which it would block.
        """
        if runs_a_loop():
            raise RuntimeError(f"waiting for {self.name} would block the running event loop; await it instead")
        seconds = self.timeout if timeout is None else timeout
        woken = threading.Event()
        waiter = _Waiter(self._reached, woken.set)
        self._board.add(self._subject, waiter)
        try:
            if not self._settle(waiter):
                woken.wait(seconds)
                self._conclude(waiter, seconds)
        finally:
            self._board.remove(self._subject, waiter)

    def __await__(self) -> Generator[object, None, None]:
        return self._attend().__await__()

    async def _attend(self) -> None:
        loop = asyncio.get_running_loop()
        woken = loop.create_future()

        def wake() -> None:
            # The waiting loop may be closed by now, with nobody left to be told.
            try:
                loop.call_soon_threadsafe(_resolve, woken)
            except RuntimeError:
                if not loop.is_closed():
                    raise

        waiter = _Waiter(self._reached, wake)
        self._board.add(self._subject, waiter)
        try:
            if not self._settle(waiter):
                deadline = loop.call_later(self.timeout, _resolve, woken)
                try:
                    await woken
                finally:
                    deadline.cancel()
                self._conclude(waiter, self.timeout)
        finally:
            self._board.remove(self._subject, waiter)

    def _settle(self, waiter: _Waiter) -> bool:
        """Whether the wait is over before it began: true when reached; raises when it cannot be any more."""
        if waiter.met or self._reached():
            return True
        if self._board.closed:
            raise self._closed()
        return False

    def _conclude(self, waiter: _Waiter, seconds: float) -> None:
        if waiter.met or self._reached():
            return
        if self._board.closed:
            raise self._closed()
        raise DeadlineMissed(f"waited {seconds:g} s for {self._where()}")

    def _closed(self) -> EngineDown:
        return EngineDown(f"engine closed while waiting for {self._where()}")

    def _where(self) -> str:
        position = str(self._position())
        return f"{self.name}:{'' if position.startswith(chr(10)) else ' '}{position}"


def _resolve(woken: asyncio.Future[None]) -> None:
    if not woken.done():
        woken.set_result(None)


def runs_a_loop() -> bool:
    """Whether this thread runs an event loop, which blocking would hold up."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
