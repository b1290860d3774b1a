"""The fake engine as a program: a reference server in a process of its own, for clients, routers and black-box runs."""

from __future__ import annotations

import asyncio
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_grpc_conformance import registry
from pytest_grpc_conformance.engines.script import Script, Token, scored, script, side_by_side, tokens
from pytest_grpc_conformance.servers.base import BindFailed, ServerSetup

if TYPE_CHECKING:
    from pytest_grpc_conformance.engines.gated import Submission

DEFAULT_TOKENS = 16
"""What a request yields that sets no ``max_tokens``."""


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What to serve and where. ``grace``: seconds that running calls get after SIGTERM or SIGINT."""

    protocol: str
    server: str
    host: str = "127.0.0.1"
    port: int = 0
    grace: float = 5.0
    max_running: int | None = None


def default_script(submission: Submission) -> Script:
    """What a request yields: ``max_tokens`` distinct tokens per sequence, each with a score that names its position."""
    wanted = submission.parameters
    count = DEFAULT_TOKENS if wanted.max_tokens is None else wanted.max_tokens
    sequences = [scored(tokens(count, start=1_000 + 100_000 * at)) for at in range(wanted.num_sequences)]
    # Only where its scores are asked for: of a long prompt they take long to make.
    ids = submission.prompt.token_ids if wanted.prompt_logprobs is not None else ()
    prompt = tuple(Token(ids[0]) if at == 0 else token for at, token in enumerate(scored(map(Token, ids))))
    return script(side_by_side(*sequences) if count else (), prompt=prompt)


def _check_address(options: ServeOptions) -> None:
    """Raises ``BindFailed`` with the reason, which the libraries write to their own logs only."""
    try:
        family, kind, number, _, address = socket.getaddrinfo(
            options.host, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind, number) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        raise BindFailed(f"cannot listen on {options.host}, port {options.port}: {error.strerror}") from error


async def serve(options: ServeOptions) -> None:
    """Serve until SIGTERM or SIGINT, then drain. Prints one ready line. Raises ``BindFailed``."""
    from pytest_grpc_conformance.engines.gated import GatedEngine

    _check_address(options)
    wire = registry.protocol(options.protocol)
    library = registry.server_library(options.server)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # Nobody reads the engine's records here, and they would grow for as long as it serves.
    with GatedEngine(default_script=default_script, max_running=options.max_running, records=0) as engine:
        register = [lambda server, r=r: r.add(r.servicer, server) for r in wire.servicers(engine)]
        setup = ServerSetup(register, host=options.host, port=options.port)
        server = await library.start(setup)
        host = f"[{options.host}]" if ":" in options.host else options.host
        print(f"READY address={host}:{server.port}", flush=True)
        await stop.wait()
        await server.stop(options.grace)
