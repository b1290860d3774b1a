"""Runs one coroutine on an event loop that is made for it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


def run_on_own_loop(coroutine: Coroutine[Any, Any, T]) -> T:
    """The coroutine's result.

    Unlike ``asyncio.run`` it leaves the thread's current event loop as it is, which pytest-asyncio before 1.4 takes
    as lost, and never closes, once somebody has replaced it.
    """
    loop = asyncio.new_event_loop()
    try:
        return loop.run_until_complete(coroutine)
    finally:
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
