"""What a user (or a test of the suite) puts in place of the reference parts of an in-process target."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_grpc_conformance.engines.base import Engine
from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.protocols.base import Registration
from pytest_grpc_conformance.servers.base import ServerLibrary


class BadPlan(ValueError):
    """``--grpc-target`` names something that cannot be used; the message says what is wrong and what to do."""


@dataclass(frozen=True, slots=True)
class TargetPlan:
    """Parts of an in-process target; ``None`` keeps the reference part.

    ``servicers`` gets the engine and returns registrations, or pairs ``(add_to_server, servicer)``. ``engine`` makes a
    gated engine (of a subclass, say) and gets the keyword arguments of ``GatedEngine``. ``library`` replaces the server
    library.
    """

    servicers: Callable[[Engine], Sequence[Any]] | None = None
    engine: Callable[..., GatedEngine] | None = None
    library: ServerLibrary | None = None
    reference: bool = False
    """Whether message boundaries are those of the reference servicer, so that the goldens apply."""


def load_plan(reference: str) -> TargetPlan:
    """The plan that ``module:attribute`` names: a ``TargetPlan``, or a function from an engine to servicers.

    Raises ``BadPlan``.
    """
    module_name, _, attribute = reference.partition(":")
    if not module_name or not attribute:
        raise BadPlan(f"{reference!r} is not of the form module:factory")
    # As with ``python -m``, what lies in the current folder can be named.
    if os.getcwd() not in sys.path and "" not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:
        raise BadPlan(f"{module_name!r} cannot be imported ({_problem(error)})") from error
    found = module
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadPlan(f"{module_name} has no {attribute}")
        found = getattr(found, part)
    if isinstance(found, TargetPlan):
        return found
    if not callable(found):
        raise BadPlan(f"{reference} is neither a TargetPlan nor a function from an engine to servicers")
    return TargetPlan(servicers=found)


def registrations(made: Sequence[Any]) -> tuple[Registration, ...]:
    """Registrations from what a factory returned. Raises ``BadPlan``."""
    if _is_async(made):
        raise BadPlan("a factory must be a plain function, not an async one; its servicers may be async")
    if not isinstance(made, Iterable):
        raise BadPlan(f"a factory must return a list of (add_to_server, servicer), not {made!r:.80}")
    found = tuple(_registration(item) for item in made)
    if not found:
        raise BadPlan("a factory must return at least one servicer, not an empty list")
    return found


def try_out(reference: str, plan: TargetPlan) -> None:
    """Make a plan's servicers once, so that one that cannot be used is a wrong option, not the failure of every case.

    Raises ``BadPlan``.
    """
    if plan.servicers is None:
        return
    with (plan.engine or GatedEngine)() as engine:
        try:
            registrations(plan.servicers(engine))
        except BadPlan:
            raise
        except (Exception, SystemExit) as error:
            raise BadPlan(f"{reference} fails ({_problem(error)})") from error


def _problem(error: BaseException) -> str:
    """An error and the line that raised it, as one line."""
    first = f"{type(error).__name__}: {error}".splitlines()[0]
    frames = traceback.extract_tb(error.__traceback__)
    machinery = ("<", __file__, os.path.dirname(importlib.__file__))
    inside = [frame for frame in frames if not frame.filename.startswith(machinery)]
    return f"{first}, {Path(inside[-1].filename).name}:{inside[-1].lineno}" if inside else first


def _is_async(made: Any) -> bool:
    """Whether an async function made this. It is closed, as Python warns of a coroutine that nobody has awaited."""
    if inspect.iscoroutine(made):
        made.close()
        return True
    return inspect.isawaitable(made) or inspect.isasyncgen(made)


def _registration(item: Any) -> Registration:
    servicer = item.servicer if isinstance(item, Registration) else item[-1] if isinstance(item, tuple) else None
    if _is_async(servicer):
        raise BadPlan("a servicer must be an object, not what an async function returns; make it in a plain function")
    if isinstance(item, Registration):
        return item
    if isinstance(item, tuple) and len(item) == 2 and callable(item[0]):
        return Registration(item[1], item[0])
    raise BadPlan(f"a factory must return pairs (add_to_server, servicer) or registrations, not {item!r:.80}")
