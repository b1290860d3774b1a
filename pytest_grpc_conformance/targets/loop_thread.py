"""A background event loop on a thread of its own, on which servers under test run."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class LoopStuck(TimeoutError):
    """Something that the harness ran on its loop did not end in time."""


class LoopThread:
    """An event loop on a daemon thread; ``run`` hands it a coroutine and waits for the result.

    Daemon, so that a servicer under test that blocks the loop for ever cannot keep the interpreter from ending.
    """

    def __init__(self, name: str = "grpc-conformance-loop") -> None:
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()
        self._ready.wait()

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._over = asyncio.Event()
        self._ready.set()
        await self._over.wait()

    def run(self, coroutine: Coroutine[Any, Any, T], timeout: float) -> T:
        """The coroutine's result. Raises ``LoopStuck`` after ``timeout`` seconds, having cancelled it."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        try:
            return future.result(timeout)
        except concurrent.futures.TimeoutError as error:
            if future.done() and not future.cancelled():
                raise
            future.cancel()
            what = getattr(coroutine, "__qualname__", "a coroutine")
            raise LoopStuck(f"{what} did not end within {timeout:g} s") from error

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def close(self, timeout: float = 5.0) -> None:
        """Cancel what is left on the loop, end it and join the thread; raises ``LoopStuck`` when that fails."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self._over.set)
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise LoopStuck(f"the server loop did not end within {timeout:g} s; something blocks it")
