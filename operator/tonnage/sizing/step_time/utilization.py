"""Utilization: what share of a GPU's bandwidth or arithmetic some measured speed uses."""


def observed_mbu_fraction(*, step_bytes: float, step_s: float, memory_bytes_per_s: float) -> float:
    """Return memory bandwidth utilization as shown to people, per rank and over busy time.

    ``step_bytes / step_s / memory_bytes_per_s``. Counts the weights touched and the KV of the
    running sequences once per step, against the nominal bandwidth: no engine exceeds 1.

    >>> observed_mbu_fraction(step_bytes=24e9, step_s=0.010, memory_bytes_per_s=4.8e12)
    0.5
    """
    return step_bytes / step_s / memory_bytes_per_s


def batch1_mbu_fraction(
    *, tokens_per_s: float, batch1_bytes_per_token: float, memory_bytes_per_s: float
) -> float:
    """Return the utilization that some publications print: every token charged a whole read.

    ``tokens_per_s * batch1_bytes_per_token / memory_bytes_per_s``. One read serves a whole batch,
    so this exceeds 1 at larger batches. For display and conversion only, never a constant.

    >>> batch1_mbu_fraction(tokens_per_s=312, batch1_bytes_per_token=16e9, memory_bytes_per_s=64e12)
    0.078
    """
    return tokens_per_s * batch1_bytes_per_token / memory_bytes_per_s


def observed_mfu_fraction(
    *, tokens_per_s: float, flop_per_token: float, peak_flop_per_s: float
) -> float:
    """Return the share of peak arithmetic that the model's own work takes at this speed.

    ``tokens_per_s * flop_per_token / peak_flop_per_s``; recomputed or padded work is not counted.

    >>> observed_mfu_fraction(tokens_per_s=80_000, flop_per_token=64e9, peak_flop_per_s=80e15)
    0.064
    """
    return tokens_per_s * flop_per_token / peak_flop_per_s
