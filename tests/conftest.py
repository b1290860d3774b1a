from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def current_event_loop() -> Iterator[None]:
    """An event loop that pytest-asyncio before 1.4 finds as the current one.

    On Python 3.10 and 3.11 it makes one otherwise, and never closes it, which fails whichever test the garbage
    collector runs in.
    """
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    yield
    asyncio.set_event_loop(None)
    loop.close()
