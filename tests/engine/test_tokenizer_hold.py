"""Prompts can be held in the fake engine's tokenizer, off the event loop only."""

from __future__ import annotations

import asyncio

import pytest
from servicing import submit, words

from pytest_grpc_conformance.engines.gated import DeadlineMissed, GatedEngine
from pytest_grpc_conformance.engines.script import Prompt


async def _tokenize(engine: GatedEngine, text: str) -> tuple[int, ...]:
    return await asyncio.to_thread(engine.tokenize, text)


def test_text_stays_in_the_tokenizer_until_its_release(engine, thread_loop):
    hold = engine.hold_tokenizer()
    held = asyncio.run_coroutine_threadsafe(_tokenize(engine, "ab"), thread_loop.loop)
    hold.entered("ab").wait()
    assert not held.done()
    assert not hold.entered("other").reached
    hold.release()
    assert held.result(10) == (100, 101)
    assert thread_loop.run(_tokenize(engine, "a")) == (100,)


def test_nothing_is_held_before_it_is_asked_for(engine, thread_loop):
    assert thread_loop.run(_tokenize(engine, "a")) == (100,)


def test_text_that_is_tokenized_on_the_loop_is_seen_and_not_held(engine, thread_loop):
    hold = engine.hold_tokenizer()
    engine.prepare("r1", words("a"))
    assert thread_loop.run(submit(engine, prompt=Prompt((), "ab"))).prompt_token_ids == (100, 101)
    assert hold.entered("ab").reached


def test_end_of_the_engine_releases_what_is_held(thread_loop):
    with GatedEngine() as engine:
        hold = engine.hold_tokenizer()
        held = asyncio.run_coroutine_threadsafe(_tokenize(engine, "a"), thread_loop.loop)
        hold.entered("a").wait()
    assert held.result(10) == (100,)


def test_text_that_never_comes_is_told_with_what_came(engine):
    with pytest.raises(DeadlineMissed, match=r"entered\('a'\) of the tokenizer: it was given 0 texts"):
        engine.hold_tokenizer().entered("a").wait(0.01)
