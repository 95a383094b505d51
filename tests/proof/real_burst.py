"""Both queues on real vLLM for CPU: what the module costs, and who is in time in a burst.

    PYTHONPATH=tests/support python tests/proof/real_burst.py [--version 0.20] [--limit-s 4]

Two engines, each on a core of its own, get the same requests at the same times, so that what else
this machine does slows both. First one request at a time, to one engine and the other in turn; then
0.5 times what an engine serves, three times that, and 0.5 times again.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

import aiohttp
from proof_real import rendered, started
from test_real_queue import ASKED, LISTS, QUEUES

from tonnage_lab import vllm_cpu, vllm_entry, vllm_site

SLOTS, TOKENS, CALM = 4, 10, 0.5
PROMPT = [7] * 200


async def ttft_s(session: aiohttp.ClientSession, url: str, tokens: int = TOKENS) -> float:
    """Return when the first token came, and read the rest."""
    asked = {**ASKED, "prompt": PROMPT, "max_tokens": tokens, "stream": True}
    began_s, first_s = time.perf_counter(), 0.0
    async with session.post(f"{url}/v1/completions", json=asked) as answer:
        async for line in answer.content:
            if line.startswith(b"data:") and not first_s:
                first_s = time.perf_counter()
    return first_s - began_s


async def in_turn(session: aiohttp.ClientSession, urls: Sequence[str], number: int) -> list[float]:
    """Return the median TTFT of each engine, of requests alone."""
    found: list[list[float]] = [[] for _ in urls]
    for each in range(number):
        for place in random.sample(range(len(urls)), len(urls)):
            took_s = await ttft_s(session, urls[place], 1)
            if each >= number // 10:
                found[place].append(took_s)
    return list(map(median, found))


async def served_per_s(session: aiohttp.ClientSession, urls: Sequence[str], for_s: float) -> float:
    """Return what an engine serves while both are full."""
    ended = [0 for _ in urls]
    until_s = time.perf_counter() + for_s

    async def user(place: int) -> None:
        while time.perf_counter() < until_s:
            await ttft_s(session, urls[place])
            ended[place] += time.perf_counter() < until_s

    await asyncio.gather(*(user(place) for place in (0, 1) for _ in range(2 * SLOTS)))
    return min(ended) / for_s


async def burst(
    session: aiohttp.ClientSession, urls: Sequence[str], per_s: float, part_s: float
) -> list[list[tuple[float, float]]]:
    """Return when each request came, and its TTFT, for each engine."""
    arrivals, at_s = list[float](), 0.0
    while True:
        at_s += random.expovariate(per_s * (3 if part_s <= at_s < 2 * part_s else 1))
        if at_s > 4 * part_s:
            break
        arrivals.append(at_s)
    found: list[list[tuple[float, float]]] = [[], []]
    began_s = time.perf_counter()

    async def one(place: int, at_s: float) -> None:
        found[place].append((at_s, await ttft_s(session, urls[place])))

    tasks = []
    for at_s in arrivals:
        await asyncio.sleep(max(0.0, began_s + at_s - time.perf_counter()))
        tasks += [asyncio.create_task(one(place, at_s)) for place in (0, 1)]
    await asyncio.gather(*tasks)
    return found


async def measured(urls: Sequence[str], options: argparse.Namespace) -> dict[str, Any]:
    session = aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None))
    async with session:
        alone_s = await in_turn(session, urls, options.alone)
        capacity = await served_per_s(session, urls, options.part_s)
        found = await burst(session, urls, CALM * capacity, options.part_s)
    parts = {"before": (0, 1), "burst": (1, 2), "after": (2, 4), "all": (0, 4)}
    shares = {
        name: {
            queue: round(sum(w <= options.limit_s for w in waits) / max(1, len(waits)), 3)
            for queue, each in zip(QUEUES, found, strict=True)
            for waits in [[w for at, w in each if a * options.part_s <= at < b * options.part_s]]
        }
        for name, (a, b) in parts.items()
    }
    return {
        "ttft alone, ms": [round(1e3 * each, 2) for each in alone_s],
        "ratio": round(alone_s[1] / alone_s[0], 4),
        "served/s": capacity,
        "requests": len(found[0]),
        "in time": shares,
        "longest wait, s": [round(max(w for _, w in each), 1) for each in found],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--version", choices=LISTS, default=max(LISTS))
    parser.add_argument("--limit-s", type=float, default=2.0)
    parser.add_argument("--part-s", type=float, default=60.0)
    parser.add_argument("--alone", type=int, default=200)
    options = parser.parse_args()
    random.seed(60)
    packages, config = LISTS[options.version], vllm_site.MODEL_CONFIG.read_text()
    with ExitStack() as stack:
        urls = []
        for number, queue in enumerate(QUEUES):
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            template = rendered(vllm_cpu.version(packages), config, queue=queue)
            slots = ("--max-num-seqs", str(SLOTS))
            core = {vllm_entry.GPUS: str(number)}
            urls.append(
                stack.enter_context(
                    started(template, config, packages, folder, *slots, variables=core)
                )
            )
        print(json.dumps(asyncio.run(measured(urls, options)), indent=1))


if __name__ == "__main__":
    main()
