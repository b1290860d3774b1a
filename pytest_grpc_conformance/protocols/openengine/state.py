"""What the two services share: the table of active requests, and a bounded memory of those that are over."""

from __future__ import annotations

import logging
import uuid
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import NoReturn, Protocol

import grpc

from pytest_grpc_conformance.engines.base import Engine, Generation

logger = logging.getLogger(__name__)


class Context(Protocol):
    """What the servicers use of a ``grpc.aio.ServicerContext``, whatever library it comes from."""

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]] | None: ...

    def add_done_callback(self, callback: Callable[[object], None]) -> None: ...

    async def abort(self, code: grpc.StatusCode, details: str = "") -> NoReturn: ...


class ActiveRequest:
    """A request from the moment that it holds its id; ``generation`` is ``None`` until the engine has it.

    It sees to it that the engine is aborted at most once, and never after it reported the end.
    """

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.generation: Generation | None = None
        self.aborted = False
        """Somebody asked for the abort by the Abort RPC, and was told that it happens."""
        self._engine_over = False

    def engine_ended(self) -> None:
        """The engine said that nothing more will come."""
        self._engine_over = True

    def abort(self) -> None:
        """Abort as the Abort RPC does; the second call changes nothing. Raises what the engine raises."""
        if not self.aborted:
            self._abort_engine()
            self.aborted = True

    def leave(self) -> None:
        """Nobody wants the rest: abort the engine's work if there is any left. Never raises."""
        try:
            self._abort_engine()
        except Exception:
            logger.warning("the engine did not abort an abandoned request", exc_info=True)
            self._engine_over = True

    def _abort_engine(self) -> None:
        if self.generation is not None and not self._engine_over:
            self.generation.abort()
            self._engine_over = True


class ServerState:
    """One server's state. Every method runs on the server's event loop and none of them waits."""

    def __init__(self, engine: Engine, *, remembered: int = 1024, probe_timeout: float = 5.0) -> None:
        self.engine = engine
        self.instance_id = str(uuid.uuid4())
        self.draining = False
        """While true, new work is refused with UNAVAILABLE; accepted streams go on."""
        self.probe_timeout = probe_timeout
        """Seconds that the inference probe of Health may take."""
        self._remembered = remembered
        self._active: dict[str, ActiveRequest] = {}
        self._over: OrderedDict[str, None] = OrderedDict()

    @property
    def active(self) -> list[ActiveRequest]:
        return list(self._active.values())

    def find(self, request_id: str) -> ActiveRequest | None:
        return self._active.get(request_id)

    def is_over(self, request_id: str) -> bool:
        """Whether a request of this id was accepted and has ended, as far as that is remembered."""
        return request_id in self._over

    def admit(self, request_id: str) -> ActiveRequest | None:
        """Take an id for a new request; ``None`` while another one holds it."""
        if request_id in self._active:
            return None
        request = self._active[request_id] = ActiveRequest(request_id)
        return request

    def release(self, request: ActiveRequest) -> None:
        """The request is over for its client: drop it, and with it what the engine may still be doing for it.

        Legal more than once; a newer request that took the same id is left alone.
        """
        request.leave()
        if self._active.get(request.request_id) is not request:
            return
        del self._active[request.request_id]
        if request.generation is not None or request.aborted:
            self._over[request.request_id] = None
            self._over.move_to_end(request.request_id)
            while len(self._over) > self._remembered:
                self._over.popitem(last=False)
