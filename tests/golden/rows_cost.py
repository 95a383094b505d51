"""Our values: what tokens, users and bandwidth cost."""

from dataclasses import replace

from golden.documents import ROWS, gpu, nominal_speeds, row
from golden.formulas import bandwidth_per_usd, weight_bytes
from tonnage.catalog.engine_speed import TEXTBOOK_SPEED
from tonnage.sizing.bill import usd_per_user
from tonnage.sizing.cost import usd_per_million_tokens
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.step_time.step import Step, step_time
from tonnage.units import GB, HOURS_PER_MONTH


@row("usd-per-mtok-70b-4xh100")
def usd_per_mtok_70b_4xh100():
    return {
        tok_s: usd_per_million_tokens(usd_per_hour=16, tokens_per_s=tok_s) for tok_s in (286, 7200)
    }


@row("usd-per-user-b200")
def usd_per_user_b200():
    return {users: usd_per_user(usd=40_000, num_users=users) for users in (6, 300)}


@row("usd-per-user-month")
def usd_per_user_month():
    return {
        "per_hour": usd_per_user(usd=4, num_users=300),
        "per_month": usd_per_user(usd=4 * HOURS_PER_MONTH, num_users=300),
    }


@row("bandwidth-per-dollar")
def bandwidth_per_dollar():
    def gb_s_per_usd(name):
        figures = gpu(name)
        per_usd = bandwidth_per_usd(
            memory_bytes_per_s=figures.memory_bytes_per_s, price_usd=figures.price.purchase_usd
        )
        return per_usd / GB

    names = ("H100-SXM5", "A100-SXM4-80GB", "L40S", "RTX-4090")
    return {name: gb_s_per_usd(name) for name in names}


def tok_s(gpu_name, *, weights_bytes, batch, bandwidth_efficiency=1.0):
    """Return tokens per second when nothing but the weights is read."""
    shard = Shard(weights_bytes=weights_bytes, dense_read_bytes=weights_bytes)
    constants = replace(TEXTBOOK_SPEED, bandwidth_efficiency=bandwidth_efficiency)
    step = Step(num_sequences=batch, context_tokens=0)
    return batch / step_time(shard, nominal_speeds(gpu_name), constants, step).total_s


@row("usd-per-mtok-70b-fp16-b32")
def usd_per_mtok_70b_fp16_b32():
    inputs = [cells[:3] for cells in ROWS["usd-per-mtok-70b-fp16-b32"]["rows"]]
    speeds = [
        tok_s(name, weights_bytes=140 * GB / n, batch=32, bandwidth_efficiency=0.7)
        for name, n, _ in inputs
    ]
    costs = [
        usd_per_million_tokens(usd_per_hour=n * usd_per_hour, tokens_per_s=speed)
        for (_, n, usd_per_hour), speed in zip(inputs, speeds, strict=True)
    ]
    names, counts, prices = (list(column) for column in zip(*inputs, strict=True))
    return {"gpu": names, "n": counts, "usd_per_hour": prices, "tok_s": speeds} | {
        "usd_per_mtok": costs
    }


@row("l40s-beats-h100")
def l40s_beats_h100():
    table = usd_per_mtok_70b_fp16_b32()
    cost = dict(zip(table["gpu"], table["usd_per_mtok"], strict=True))
    return {name: cost[name] for name in ("H100-SXM5", "L40S")}


@row("a100-vs-h100-13b")
def a100_vs_h100_13b():
    weights_bytes = weight_bytes(num_parameters=13e9, bytes_per_parameter=2)
    h100, a100 = (
        tok_s(name, weights_bytes=weights_bytes, batch=1)
        for name in ("H100-SXM5", "A100-SXM4-80GB")
    )
    h100_usd = usd_per_million_tokens(usd_per_hour=2.7, tokens_per_s=h100)
    a100_usd = usd_per_million_tokens(usd_per_hour=1.0, tokens_per_s=a100)
    return {
        "weights_gb": weights_bytes / GB,
        "speed": h100 / a100,
        "tokens_per_dollar": h100_usd / a100_usd,
    }
