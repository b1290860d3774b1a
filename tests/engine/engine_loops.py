"""Event loops for tests: one that is turned by hand, and one that runs in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class ManualLoop(asyncio.SelectorEventLoop):
    """A loop in debug mode that runs one turn when told to, and records what it was asked for from outside."""

    def __init__(self) -> None:
        super().__init__()
        self.set_debug(True)
        self.wake_ups = 0
        self.complaints: list[dict[str, Any]] = []
        self.set_exception_handler(lambda _, context: self.complaints.append(context))

    def call_soon_threadsafe(self, *args: Any, **kwargs: Any) -> asyncio.Handle:
        self.wake_ups += 1
        return super().call_soon_threadsafe(*args, **kwargs)

    def turn(self, times: int = 3) -> None:
        """Run what is ready; a callback, the task that it wakes and what that calls take a turn each."""
        for _ in range(times):
            self.call_soon(self.stop)
            self.run_forever()


class ThreadLoop:
    """A loop in debug mode that runs in a thread of its own."""

    def __init__(self) -> None:
        self.loop = ManualLoop()
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Any:
        """A concurrent future of the coroutine's result."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop)

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        result: T = self.start(coroutine).result(10)
        return result

    def call(self, function: Callable[[], T]) -> T:
        """Call a plain function on the loop."""

        async def call() -> T:
            return function()

        return self.run(call())

    def close(self) -> None:
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
        if not self.loop.is_closed():
            finish(self.loop)


def finish(loop: ManualLoop) -> None:
    """Close a loop; a task that is left, or a complaint of the loop, is a fault of the test or of the code."""
    left = asyncio.all_tasks(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
    complaints = loop.complaints
    loop.close()
    assert not left, f"tasks are left: {left}"
    assert not complaints, complaints
