"""Utilization: what share of a GPU's bandwidth or arithmetic some measured speed uses."""


def observed_mbu_fraction(*, step_bytes: float, step_s: float, memory_bytes_per_s: float) -> float:
    """Return memory bandwidth utilization as shown to people, per rank and over busy time.

    ``step_bytes / step_s / memory_bytes_per_s``. Counts the weights touched and the KV of the
    running sequences once per step, against the nominal bandwidth: no engine exceeds 1.

    >>> observed_mbu_fraction(step_bytes=24e9, step_s=0.010, memory_bytes_per_s=4.8e12)
    0.5
    """
    return step_bytes / step_s / memory_bytes_per_s
