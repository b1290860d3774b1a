"""What a request asks of an engine, as the engine sees it: presence is kept, nothing is defaulted."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class GenerationParameters:
    """Parameters of one submission.

    ``None`` means that the client left the field out; an explicit zero stays a zero. A servicer that merges the
    two is at fault (OpenEngine v1, docs/api.md, Generation API), and the engine's record of a submission shows it.
    """

    max_tokens: int | None = None
    """Most tokens per sequence; ``None``: as many as the script holds."""
    min_tokens: int | None = None
    """No stop cause acts before this many tokens exist."""
    num_sequences: int = 1
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_texts: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop: bool = False
    """Whether the matched stop stays in the output (tokens and text)."""
    ignore_eos: bool = False
    logprobs: int | None = None
    """``None``: no scores; ``k``: each token's own score and its ``k`` best candidates."""
    prompt_logprobs: int | None = None
    """The same for the prompt's tokens."""
