"""``python -m tonnage_lab.emulator serve MODEL [flags of vllm serve]``."""

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import Any

from aiohttp import web

from tonnage.engine.limits import EngineLimits, LimitsError
from tonnage.units import GIB, KIB
from tonnage_lab.emulator import buckets, truth
from tonnage_lab.emulator.arguments import Arguments, cache_config, parse
from tonnage_lab.emulator.loop import EngineLoop
from tonnage_lab.emulator.metrics import MetricsPage
from tonnage_lab.emulator.server import VARIABLE, Server
from tonnage_lab.emulator.transfer import Group, join
from tonnage_lab.emulator.truth import EngineTruth, TruthError

logger = logging.getLogger("tonnage_lab.emulator")

KV_BYTES_PER_TOKEN = 320 * KIB
"""Of a model of 70B in 16 bits: two times 80 layers, 8 heads of 128."""
LAST_LINE = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
"""Of vLLM 0.33, v1/engine/utils.py."""
LAST_WORDS_S = 0.5
"""For answers that are being written when the engine is empty."""


def engine_limits(arguments: Arguments, hidden: EngineTruth) -> EngineLimits:
    """Return what one engine may use.

    Raises:
        TruthError: the file does not say enough.
        LimitsError: vLLM would not start with these arguments either.
    """
    max_model_len = arguments.max_model_len or hidden.max_model_len
    if max_model_len is None:
        raise TruthError("--max-model-len is absent, and no model configuration is read here")
    block_size = truth.block_size(hidden, arguments)
    kv_tokens = truth.kv_tokens(hidden, arguments)
    num_gpu_blocks = kv_tokens // block_size
    usable = (num_gpu_blocks - 1) * block_size
    refuse_start(arguments, hidden, kv_tokens=usable, max_model_len=max_model_len)
    return EngineLimits(
        max_num_seqs=arguments.max_num_seqs,
        max_num_batched_tokens=arguments.max_num_batched_tokens,
        num_blocks=num_gpu_blocks - 1,
        block_size=block_size,
        max_model_len=max_model_len,
        num_draft_tokens=arguments.num_draft_tokens,
        acceptance_rate=hidden.acceptance_rate,
        num_ranks=arguments.data_parallel_size,
    )


def refuse_start(
    arguments: Arguments, hidden: EngineTruth, *, kv_tokens: int, max_model_len: int
) -> None:
    """Refuse what vLLM refuses once it has loaded, in its own words, as its log has them.

    Raises:
        LimitsError: more slots than blocks for states, or too few tokens for one request.

    Sources:
        [vllm-source] 0.33 config/compilation.py, v1/core/kv_cache_planning.py.
    """
    blocks, seqs = hidden.state_blocks, arguments.max_num_seqs
    if blocks is not None and seqs > blocks:
        raise LimitsError(
            f"ValueError: max_num_seqs ({seqs}) exceeds available Mamba cache blocks ({blocks}). "
            "Each decode sequence requires one Mamba cache block, so CUDA graph capture cannot "
            f"proceed. Please lower max_num_seqs to at most {blocks} or increase "
            "gpu_memory_utilization."
        )
    if kv_tokens < max_model_len:
        needed, there = (each * KV_BYTES_PER_TOKEN / GIB for each in (max_model_len, kv_tokens))
        raise LimitsError(
            "ValueError: To serve at least one request with the model's max seq len "
            f"({max_model_len}), ({needed:.2f} GiB KV cache is needed, which is larger than the "
            f"available KV cache memory ({there:.2f} GiB). Based on the available memory, the "
            f"estimated maximum model length is {kv_tokens}. Try increasing "
            "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or "
            "decreasing `max_model_len` when initializing the engine. See "
            "https://docs.vllm.ai/en/latest/configuration/conserving_memory/ for more details."
        )


def build(arguments: Arguments, hidden: EngineTruth) -> tuple[Server, EngineLoop]:
    """Put the parts together; needs a running event loop."""
    limits = engine_limits(arguments, hidden)
    costs = truth.step_costs(hidden, arguments)
    bounds = buckets.effective(arguments.custom_buckets, max_model_len=limits.max_model_len)
    page = MetricsPage(model_name=arguments.served_model_names[0], buckets=bounds)
    if arguments.enable_mfu_metrics and hidden.work:
        page.show_work()
    if arguments.num_draft_tokens:
        page.show_drafts(arguments.num_draft_tokens)
    ranks = range(limits.num_ranks)
    num_gpu_blocks = limits.num_blocks + 1
    page.show_cache_configs(
        [cache_config(arguments, limits, num_gpu_blocks=num_gpu_blocks, engine=n) for n in ranks]
    )
    series = [page.engine(rank, hidden.work) for rank in ranks]
    loop = EngineLoop(limits, costs, series, hidden.server_s)
    server = Server(
        arguments=arguments,
        loop=loop,
        page=page,
        max_model_len=limits.max_model_len,
        hidden=hidden,
    )
    return server, loop


def told_to_stop() -> asyncio.Task[bool]:
    """Return what is done when SIGTERM or SIGINT comes."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return asyncio.create_task(stop.wait())


async def wait_for_others(others: asyncio.Task[Any], stopping: asyncio.Task[bool]) -> None:
    """Wait for the other processes, or for the stop; what broke the search is raised."""
    await asyncio.wait([stopping, others], return_when=asyncio.FIRST_COMPLETED)
    if others.done():
        others.result()


async def work(arguments: Arguments) -> None:
    """Be the process of a further node until SIGTERM or SIGINT."""
    stopping = told_to_stop()
    joining = asyncio.create_task(join(arguments))
    await wait_for_others(joining, stopping)
    await stopping
    joining.cancel()


async def serve(arguments: Arguments, hidden: EngineTruth) -> None:
    """Load, serve until SIGTERM or SIGINT, drain for ``--shutdown-timeout``, and return."""
    stopping = told_to_stop()
    server, loop = build(arguments, hidden)
    runner = web.AppRunner(
        server.application(api_key=os.environ.get(VARIABLE)),
        access_log=None,
        handler_cancellation=True,
        shutdown_timeout=LAST_WORDS_S,
    )
    await runner.setup()
    site = web.TCPSite(runner, arguments.host, arguments.port)
    await site.start()
    stepper = asyncio.create_task(loop.run())
    gathering = asyncio.create_task(Group(arguments, on_loss=loop.stall).gather())
    try:
        await wait_for_others(gathering, stopping)
        await asyncio.wait([stopping], timeout=hidden.load_s)
        server.ready = True
        logger.info("serving %s on port %d", arguments.served_model_names[0], arguments.port)
        await asyncio.wait([stopping, stepper], return_when=asyncio.FIRST_COMPLETED)
        server.draining = True
        await site.stop()
        await drain(loop, timeout_s=arguments.shutdown_timeout_s)
    finally:
        await runner.cleanup()
    gathering.cancel()
    stepper.cancel()
    with contextlib.suppress(asyncio.CancelledError):  # what broke the loop is raised
        await stepper


async def drain(loop: EngineLoop, *, timeout_s: float) -> None:
    """Let requests in flight end, and abort those that do not in time."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            await loop.wait_until_idle()
    loop.abort_all()


def main(argv: list[str]) -> int:
    """Run the emulator; 1 when vLLM would not start, 2 when it would not know a flag."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s")
    arguments = parse(argv)
    try:
        hidden = EngineTruth.from_environment()
        asyncio.run(work(arguments) if arguments.is_headless else serve(arguments, hidden))
    except (TruthError, LimitsError) as error:
        logger.error("%s", error)  # noqa: TRY400 -- a wrong argument needs no traceback
        print(LAST_LINE, file=sys.stderr)  # noqa: T201
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
