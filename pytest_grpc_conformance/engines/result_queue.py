"""Carries results from worker threads to consumers on event loops.

A worker thread puts items in; one consumer per queue takes them out on the loop that the queue belongs to.
A loop that is stopped keeps what it was given until it runs again; a loop that is closed answers with
``ConsumerGone``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class ConsumerGone(RuntimeError):
    """The event loop that ``queues`` belong to is closed, so nobody can take what was put into them."""

    def __init__(self, queues: tuple[ResultQueue[Any], ...]) -> None:
        super().__init__(f"the event loop of the consumer is closed ({len(queues)} result queue(s))")
        self.queues = queues


class ResultQueue(Generic[T]):
    """A queue from any thread to one event loop, in order and without a bound.

    ``arrived`` holds what has not been taken yet, oldest first. Any thread may append to it (through
    ``put`` and ``deliver``, which also wake the loop); only code on the queue's loop takes from it.
    """

    __slots__ = ("_waiters", "arrived", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop | None = None) -> None:
        """``loop`` is the consumer's; left out, it is the running one (``RuntimeError`` without any)."""
        self.loop = asyncio.get_running_loop() if loop is None else loop
        self.arrived: deque[T] = deque()
        self._waiters: list[asyncio.Future[None]] = []

    def put(self, item: T) -> None:
        """Append one item and wake the consumer, from any thread. Raises ``ConsumerGone``."""
        deliver(((self, item),))

    async def get(self) -> T:
        """The oldest item, once there is one. A cancelled call takes nothing.

        Raises ``RuntimeError`` on a loop other than the queue's.
        """
        while not self.arrived:
            await self._arrival()
        return self.arrived.popleft()

    async def _arrival(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError("a result queue is read on the event loop that it was made for")
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            if waiter in self._waiters:  # cancelled before its notification
                self._waiters.remove(waiter)

    def _notify(self) -> None:
        """Wake every getter that is not finished; one that finds nothing left waits on."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def deliver(batch: Iterable[tuple[ResultQueue[Any], Any]]) -> None:
    """Put each item of a batch into its queue, and wake each event loop once.

    Items of one queue keep their order. An item that cannot be handled, or a loop that is closed, stops no
    other: first everything else is delivered, then ``ConsumerGone`` is raised for all queues whose loop is
    closed, else the first other error. So after ``ConsumerGone`` the other items have arrived.
    """
    errors: list[Exception] = []
    touched: dict[asyncio.AbstractEventLoop, dict[ResultQueue[Any], None]] = {}
    latest = None
    for entry in batch:
        try:
            queue, item = entry
            queue.arrived.append(item)
            if queue is not latest:  # most items follow one of the same queue
                touched.setdefault(queue.loop, {})[queue] = None
                latest = queue
        except Exception as error:
            errors.append(error)
    gone: list[ResultQueue[Any]] = []
    for loop, queues in touched.items():
        try:
            loop.call_soon_threadsafe(_notify_all, loop, tuple(queues))
        except Exception as error:
            if loop.is_closed():
                gone.extend(queues)
            else:
                errors.append(error)
    if gone:
        raise ConsumerGone(tuple(gone)) from (errors[0] if errors else None)
    if errors:
        raise errors[0]


def _notify_all(loop: asyncio.AbstractEventLoop, queues: tuple[ResultQueue[Any], ...]) -> None:
    for queue in queues:
        try:
            queue._notify()
        except Exception as error:
            loop.call_exception_handler({"message": "a result queue could not be notified", "exception": error})
