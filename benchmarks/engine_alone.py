"""How many tokens per second the fake engine yields without any server: its share of a server's figure.

    python benchmarks/engine_alone.py [--requests 64] [--tokens 128] [--rounds 15] [--own-scripts]

One round submits all requests at once on one event loop, each with all steps released and one token a step,
and lets one task per request iterate its handle to the end. The requests share one script, as a load run
does, unless ``--own-scripts`` gives each its own: then the round also pays for cutting each script to its
parameters.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import statistics
import time

from pytest_grpc_conformance.engines.gated import GatedEngine
from pytest_grpc_conformance.engines.parameters import GenerationParameters
from pytest_grpc_conformance.engines.script import Prompt, Script, one_by_one, script, tokens

WARM_UP_ROUNDS = 2
PROMPT = Prompt((1, 2, 3))
PARAMETERS = GenerationParameters(max_tokens=4096)


async def consume(engine: GatedEngine, request_id: str) -> int:
    results = 0
    async for _ in engine.submit(request_id, PROMPT, PARAMETERS):
        results += 1
    return results


async def one_round(engine: GatedEngine, requests: int) -> tuple[int, float]:
    """Results taken, and the seconds from the first submission to the last result."""
    begin = time.perf_counter()
    results = await asyncio.gather(*(consume(engine, f"r{number}") for number in range(requests)))
    return sum(results), time.perf_counter() - begin


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    arguments.add_argument("--requests", type=int, default=64)
    arguments.add_argument("--tokens", type=int, default=128, help="per request")
    arguments.add_argument("--rounds", type=int, default=15)
    arguments.add_argument("--own-scripts", action="store_true")
    options = arguments.parse_args()

    def played(number: int) -> Script:
        return script(one_by_one(tokens(options.tokens, start=100 + number)))

    shared = played(0)
    own = [played(number) for number in range(options.requests)] if options.own_scripts else None
    speeds: list[float] = []
    for number in range(WARM_UP_ROUNDS + options.rounds):
        with GatedEngine() as engine:
            for request in range(options.requests):
                engine.prepare(f"r{request}", own[request] if own else shared, open=True)
            results, seconds = asyncio.run(one_round(engine, options.requests))
        if results != options.requests * options.tokens:
            raise SystemExit(f"{results} results instead of {options.requests * options.tokens}")
        if number >= WARM_UP_ROUNDS:
            speeds.append(results / seconds)
    report = {
        "requests": options.requests,
        "tokens_per_request": options.tokens,
        "own_scripts": options.own_scripts,
        "rounds": options.rounds,
        "tokens_per_s": {
            "median": round(statistics.median(speeds)),
            "range": [round(min(speeds)), round(max(speeds))],
        },
        "python": platform.python_version(),
        "machine": platform.machine(),
        "clock": "time.perf_counter",
    }
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
