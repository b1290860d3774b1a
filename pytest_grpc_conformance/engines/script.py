"""What a request will yield: a script says it step by step, before any server has seen the request.

A script is data. The engine plays it (``gated.py``), the rules of stopping cut it (``course.py``), and the
expected outcome of a case comes from the same data, never from what some server answered.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Candidate:
    """One alternative for a position: token id, log probability (natural logarithm) and rank from 1."""

    token_id: int
    logprob: float
    rank: int


@dataclass(frozen=True, slots=True)
class Token:
    """One generated (or prompt) token.

    ``piece`` is the token's share of the text as UTF-8 bytes; it may end in the middle of a character. A
    token without scores has ``logprob`` and ``rank`` ``None`` and no candidates.
    """

    id: int
    piece: bytes = b""
    logprob: float | None = None
    rank: int | None = None
    candidates: tuple[Candidate, ...] = ()


class FinishReason(enum.Enum):
    """Why a sequence ended, in words that every protocol can translate."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class StopText:
    """The output ended on a stop string that the caller gave."""

    text: str


@dataclass(frozen=True, slots=True)
class StopToken:
    """The output ended on a stop token id that the caller gave."""

    token_id: int


@dataclass(frozen=True, slots=True)
class EndOfSequence:
    """The output ended on one of the model's own end-of-sequence ids."""

    token_id: int


StopMatch = StopText | StopToken | EndOfSequence


@dataclass(frozen=True, slots=True)
class Finish:
    """The end of one sequence: its reason and, for ``STOP``, what matched."""

    reason: FinishReason
    match: StopMatch | None = None


@dataclass(frozen=True, slots=True)
class Advance:
    """What one step adds to one sequence: any number of tokens (none is legal), and possibly its end."""

    index: int
    tokens: tuple[Token, ...] = ()
    finish: Finish | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One iteration of the engine: one result that a gate holds or releases. Without advances it is empty."""

    advances: tuple[Advance, ...] = ()


class Ending(enum.Enum):
    """What happens once every step of a script has been played and some sequence has not finished."""

    LENGTH = "length"
    """The open sequences finish with reason ``LENGTH`` in the last step (the context window is full)."""
    NOTHING = "nothing"
    """The result stream ends without a finish, as an engine does that lost the request."""
    FAILURE = "failure"
    """The result stream raises the error of ``Script.failure_kind`` with the text ``Script.failure``."""


class AbortConduct(enum.Enum):
    """How the engine takes an abort."""

    FINISH = "finish"
    """It ends, with a last result whose open sequences have reason ``CANCELLED``."""
    SILENT = "silent"
    """It ends, and yields nothing more."""
    REFUSE = "refuse"
    """``abort()`` raises ``AbortRefused``; the request runs on."""
    SLOW = "slow"
    """It ends as with ``FINISH``, but only once the test calls ``Gate.release_abort()``."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """The engine refuses the submission. ``kind`` is one of the engine's own error kinds (``gated.py``)."""

    kind: str = "invalid"
    message: str = "refused by the script"


@dataclass(frozen=True, slots=True)
class Script:
    """What one request yields.

    ``prompt`` holds one token per prompt token with its scores, for requests that ask for prompt logprobs;
    the first one has none (there is nothing it could be conditioned on). ``failure`` is the message of the
    error that is raised after the last step when ``ending`` is ``FAILURE``, and ``failure_kind`` the kind of it
    (``gate.FAILURE_KINDS``): the engine broke, found the request invalid, or dropped it for lack of room.
    """

    steps: tuple[Step, ...] = ()
    ending: Ending = Ending.LENGTH
    failure: str = "engine failure"
    failure_kind: str = "failure"
    refusal: Refusal | None = None
    abort: AbortConduct = AbortConduct.FINISH
    prompt: tuple[Token, ...] = ()
    cached_tokens: int | None = 0
    """Prompt tokens found in the prefix cache; ``None``: the engine cannot tell."""

    @property
    def num_sequences(self) -> int:
        """One more than the highest sequence index that some step advances; 1 for a script without any."""
        return 1 + max((a.index for step in self.steps for a in step.advances), default=0)

    def but(self, **changes: object) -> Script:
        """A copy with other fields (``dataclasses.replace``)."""
        return replace(self, **changes)  # type: ignore[arg-type]


def tokens(count: int, *, start: int = 100, text: bool = True) -> tuple[Token, ...]:
    """``count`` distinct tokens with ids from ``start`` on, whose pieces are distinct words (or empty)."""
    return tuple(Token(start + i, f" w{i}".encode() if text else b"") for i in range(count))


def pieces(*texts: str | bytes, start: int = 100) -> tuple[Token, ...]:
    """Tokens with the given pieces and ids from ``start`` on."""
    return tuple(
        Token(start + i, piece if isinstance(piece, bytes) else piece.encode()) for i, piece in enumerate(texts)
    )


def scored(plain: Iterable[Token], *, candidates: int = 5, worst_rank: int = 7) -> tuple[Token, ...]:
    """The same tokens with scores that name their position.

    The token at position ``p`` gets logprob ``-(p + 1) / 8`` (exact in 32-bit floats) and a rank that runs
    over ``1..worst_rank``; candidate ``r`` of position ``p`` has id ``10_000 * (p + 1) + r`` unless it is the
    token itself, and logprob ``-(p + 1) / 8 + (rank - r) / 1024``. So each number tells where it belongs, and
    a shift by one shows.
    """
    return tuple(_score(token, position, candidates, worst_rank) for position, token in enumerate(plain))


def _score(token: Token, position: int, candidates: int, worst_rank: int) -> Token:
    rank = 1 + position % worst_rank
    own = -(position + 1) / 8
    alternatives = tuple(
        Candidate(token.id if r == rank else 10_000 * (position + 1) + r, own + (rank - r) / 1024, r)
        for r in range(1, candidates + 1)
    )
    return replace(token, logprob=own, rank=rank, candidates=alternatives)


def one_by_one(sequence: Iterable[Token], *, index: int = 0) -> tuple[Step, ...]:
    """One step per token."""
    return tuple(Step((Advance(index, (token,)),)) for token in sequence)


def in_steps(sequence: Sequence[Token], sizes: Iterable[int], *, index: int = 0) -> tuple[Step, ...]:
    """Steps of the given sizes (0 makes an empty advance) over the tokens; the sizes must use up every token.

    Raises ``ValueError`` when they do not.
    """
    steps, at = [], 0
    for size in sizes:
        steps.append(Step((Advance(index, tuple(sequence[at : at + size])),)))
        at += size
    if at != len(sequence):
        raise ValueError(f"step sizes take {at} tokens, but there are {len(sequence)}")
    return tuple(steps)


def side_by_side(*sequences: Sequence[Token]) -> tuple[Step, ...]:
    """Several sequences, each one token a step, all in the same steps; each finishes with its last token."""
    longest = max(len(sequence) for sequence in sequences)
    return tuple(
        Step(
            tuple(
                Advance(
                    index,
                    (sequence[at],),
                    Finish(FinishReason.LENGTH) if at == len(sequence) - 1 else None,
                )
                for index, sequence in enumerate(sequences)
                if at < len(sequence)
            )
        )
        for at in range(longest)
    )


def script(*steps: Step | Iterable[Step], **fields: object) -> Script:
    """A script from steps (or groups of steps) in order; ``fields`` are those of ``Script``."""
    flat: list[Step] = []
    for item in steps:
        flat.extend([item] if isinstance(item, Step) else item)
    return Script(tuple(flat), **fields)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the request gives as input: token ids, and the text they were made from when there was one."""

    token_ids: tuple[int, ...] = field(default=())
    text: str | None = None
