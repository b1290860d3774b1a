"""Scripts, requests and orders of release at random: Hypothesis strategies, and how a property of a server is checked.

What is drawn is always legal, and its outcome is always fixed: nothing that the protocols leave open is drawn.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir

from pytest_grpc_conformance.engines.course import SequenceOutcome, course
from pytest_grpc_conformance.engines.script import (
    Advance,
    Finish,
    FinishReason,
    Script,
    Step,
    StopText,
    StopToken,
    Token,
    scored,
    script,
)
from pytest_grpc_conformance.protocols.base import Request
from pytest_grpc_conformance.verdict import Violation

EOS = frozenset({2})
EXAMPLES = 25
MOST_TOKENS = 40
MOST_SEQUENCES = 3


@dataclass(frozen=True, slots=True)
class Generation:
    """One request (its id is still to be given) and what the engine yields for it."""

    request: Request
    script: Script

    def __str__(self) -> str:
        lines = [f"request: {_set_fields(self.request)}"]
        lines += [f"step {at + 1}: {_step(step)}" for at, step in enumerate(self.script.steps)]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Play:
    """Requests that run at once, and the order in which their steps are released.

    ``early`` is how many steps of each are released before its call. ``releases`` then name a request and how many of
    its steps; what is left at the end is released at once. Numbers that are too large mean what there is.
    """

    generations: tuple[Generation, ...]
    early: tuple[int, ...]
    releases: tuple[tuple[int, int], ...]

    def __str__(self) -> str:
        parts = [f"released before the call: {self.early}, then (request, steps): {self.releases or 'the rest'}"]
        return "\n".join([*parts, *map(str, self.generations)])


def _set_fields(request: Request) -> str:
    plain = Request(request.request_id)
    fields = ((name, getattr(request, name)) for name in Request.__dataclass_fields__ if name != "request_id")
    return ", ".join(f"{name}={value!r}" for name, value in fields if value != getattr(plain, name)) or "plain"


def _step(step: Step) -> str:
    return "; ".join(map(_advance, step.advances)) or "empty"


def _advance(advance: Advance) -> str:
    shown = " ".join(f"{token.id}:{token.piece!r}" for token in advance.tokens) or "nothing"
    return f"[{advance.index}] {shown}" + (" and the end" if advance.finish else "")


# The strategies.

_CHARACTERS = st.one_of(
    st.sampled_from("ab \u00e9\u4e16\U0001f600\u0301"),
    # Without surrogates, which UTF-8 does not have, and U+FFFD, which stands for an incomplete character at the end.
    st.characters(exclude_categories=["Cs"], exclude_characters="\ufffd"),
)
_IDS = st.one_of(st.integers(0, 9), st.integers(0, 2**31 - 1))


@st.composite
def _tokens(draw: st.DrawFn) -> tuple[Token, ...]:
    """Tokens whose pieces cut one text anywhere, also within a character."""
    count = draw(st.one_of(st.integers(0, 4), st.integers(0, MOST_TOKENS)))
    ids = draw(st.lists(_IDS, min_size=count, max_size=count))
    data = draw(st.text(_CHARACTERS, max_size=2 * count)).encode()
    inner = st.lists(st.integers(0, len(data)), min_size=max(0, count - 1), max_size=max(0, count - 1))
    edges = [0, *sorted(draw(inner)), len(data)]
    plain = tuple(Token(token_id, data[edges[at] : edges[at + 1]]) for at, token_id in enumerate(ids))
    return scored(plain, candidates=3)


@st.composite
def _advances(draw: st.DrawFn, index: int, tokens: tuple[Token, ...]) -> list[Advance]:
    """One sequence in steps of 0 to 5 tokens; it ends with its last step, or is left to end with the script."""
    sizes: list[int] = []
    left = len(tokens)
    while left:
        # Three steps without a token in a row say no more than two.
        size = min(left, draw(st.integers(int(sizes[-2:] == [0, 0]), 5)))
        sizes.append(size)
        left -= size
    ends = draw(st.booleans())
    sizes = sizes or [0] * ends
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    advances = [Advance(index, tokens[at : at + size]) for at, size in zip(starts, sizes, strict=True)]
    if ends:
        advances[-1] = replace(advances[-1], finish=Finish(FinishReason.LENGTH))
    return advances


@st.composite
def _stops(draw: st.DrawFn, tokens: tuple[Token, ...]) -> tuple[StopText | StopToken, ...]:
    """Stops that may or may not occur in the output: ids, texts of whole tokens, any parts of the text, other texts."""
    text = b"".join(token.piece for token in tokens).decode(errors="ignore")
    place = st.integers(0, max(0, len(tokens) - 1))
    ids = place.map(lambda at: tokens[at].id if tokens else 7)
    whole = place.map(lambda at: b"".join(token.piece for token in tokens[at : at + 2]).decode(errors="ignore"))
    parts = st.tuples(st.integers(0, max(0, len(text) - 1)), st.integers(1, 4)).map(
        lambda drawn: text[drawn[0] : drawn[0] + drawn[1]]
    )
    others = st.text(_CHARACTERS, min_size=1, max_size=4)
    texts = st.one_of(whole, parts, others).map(lambda drawn: StopText(drawn or "x"))
    return tuple(draw(st.lists(st.one_of(texts, ids.map(StopToken)), max_size=2)))


@st.composite
def generations(draw: st.DrawFn) -> Generation:
    """A request and its script: 1 to 3 sequences of 0 to 40 tokens each, in steps of 0 to 5."""
    count = draw(st.integers(1, MOST_SEQUENCES))
    sequences = [draw(_tokens()) for _ in range(count)]
    columns = [draw(_advances(index, tokens)) for index, tokens in enumerate(sequences)]
    longest = max(map(len, columns))
    told = script(Step(tuple(column[at] for column in columns if at < len(column))) for at in range(longest))
    request = Request(
        "",
        max_tokens=draw(st.one_of(st.just(4096), st.integers(1, MOST_TOKENS))),
        num_sequences=count if count > 1 else None,
        temperature=1.0 if count > 1 else None,
        stops=draw(_stops(draw(st.sampled_from(sequences)))),
        include_stop=draw(st.booleans()) or None,
        ignore_eos=draw(st.booleans()) or None,
        logprobs=draw(st.sampled_from([None, 0, 1, 3])),
        streaming=draw(st.sampled_from([True, True, True, False])),
    )
    if not request.include_stop and not _clear_borders(request, told, sequences):
        request = request.but(include_stop=True)
    return Generation(request, told)


@st.composite
def plays(draw: st.DrawFn) -> Play:
    """One or two requests at once, and an order of release in batches."""
    chosen = tuple(draw(st.lists(generations(), min_size=1, max_size=2)))
    early = tuple(draw(st.integers(0, 5)) for _ in chosen)
    release = st.tuples(st.integers(0, len(chosen) - 1), st.integers(1, 5))
    return Play(chosen, early, tuple(draw(st.lists(release, max_size=30))))


def _clear_borders(request: Request, told: Script, sequences: list[tuple[Token, ...]]) -> bool:
    """Whether each excluded stop text begins exactly where a token begins.

    Whether the record of a token stays of whose text a part is cut away, or which has no text and stands at the border,
    no document says.
    """
    outcomes = course(told, request.parameters(), EOS).outcome
    return all(_clear(outcome, tokens) for outcome, tokens in zip(outcomes, sequences, strict=True))


def _clear(outcome: SequenceOutcome, tokens: tuple[Token, ...]) -> bool:
    if outcome.finish is None or not isinstance(outcome.finish.match, StopText):
        return True
    kept = len(outcome.tokens)
    shown = b"".join(token.piece for token in tokens[:kept])
    return shown == outcome.text.encode() and bool(tokens[kept].piece)


# Checking.


@contextlib.contextmanager
def _no_folder_left() -> Iterator[None]:
    """Hypothesis keeps caches in the current folder, which may be anybody's; here they go when the case has ended."""
    with tempfile.TemporaryDirectory(prefix="grpc-conformance-") as folder:
        set_hypothesis_home_dir(folder)
        try:
            yield
        finally:
            set_hypothesis_home_dir(None)


class _Enough(BaseException):
    """Ends Hypothesis at once: it lets pass what is no ``Exception``."""


def check_any(check: Callable[[Play], None], *, seed: int | None, patience: float, examples: int = EXAMPLES) -> None:
    """Call ``check`` with plays drawn at random; the ``Violation`` of the smallest play that makes one is raised.

    The play is in its evidence. After the first violation a smaller play is looked for during ``patience`` seconds, as
    each try costs a wait where the server does not answer at all. The plays are the same each time, unless there is a
    ``seed`` for Hypothesis. A violation counts also when it does not come again with the same play: then it is the
    server that is unsteady.
    """
    found: list[tuple[int, Violation]] = []
    until = float("inf")

    def attempt(play: Play) -> None:
        nonlocal until
        if time.monotonic() > until:
            raise _Enough
        try:
            check(play)
        except Violation as violation:
            if not found:
                until = time.monotonic() + patience
            shown = str(play)
            violation.evidence = "\n".join(filter(None, (violation.evidence, shown)))
            found.append((len(shown), violation))
            raise

    configured = settings(
        max_examples=examples,
        derandomize=seed is None,
        database=None,
        deadline=None,
        report_multiple_bugs=False,
        print_blob=False,
        phases=(Phase.generate, Phase.shrink),
        # A play takes as long as the server does.
        suppress_health_check=(HealthCheck.too_slow,),
    )
    try:
        with _no_folder_left():
            configured(given(plays())(attempt))()
    except (Exception, _Enough):
        if found:
            raise min(found, key=lambda sized: sized[0])[1] from None
        raise
