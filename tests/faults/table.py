"""The table of planted faults: what is broken, and which cases must notice, naming which rows."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

PROTOCOLS = ("openengine", "smg")
WIRE = ("grpc",)
"""For faults of a server library, which cases about the library itself notice."""


@dataclass(frozen=True)
class Fault:
    """One planted fault: an attribute of the module that declares it, which is a ``Mutant``.

    ``caught_by`` maps ``file/function`` of a case to the rows (of any protocol, separated by blanks) that its failure
    must name; for each protocol of the fault at least one variant of the function must fail. ``catalogue`` is the
    fault's number in the public catalogue of such faults, where it has one.
    """

    mutant: str
    catalogue: str = ""
    caught_by: Mapping[str, str] = field(default_factory=dict)
    protocols: tuple[str, ...] = PROTOCOLS
    since: str = ""
    """The first grpcio that does not have this fault itself; beside an older one nobody can tell it."""
    nightly: bool = False
    """Cases that run only nightly notice it."""


def planted() -> Iterator[tuple[str, Fault]]:
    """Every fault with its module, from the modules named ``faults_of_...``."""
    import tests.faults

    for info in pkgutil.iter_modules(tests.faults.__path__):
        if info.name.startswith("faults_of_"):
            module = f"tests.faults.{info.name}"
            for fault in importlib.import_module(module).FAULTS:
                yield module, fault
