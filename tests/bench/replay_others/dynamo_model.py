"""How long a step takes, as Dynamo's planner learns it: a plane over prefill tokens and KV.

Follows ai-dynamo/dynamo components/src/dynamo/planner/core/perf_model/{base,agg}.py (1.5.1).
"""

import math
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from replay_others.inside import Pass

MOST_SAMPLES: Final = 64
LEAST_SAMPLES: Final = 5
AXIS: Final = 4
"""Buckets of each axis: the oldest of the fullest bucket goes first."""
LEAST_S: Final = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What an engine allows, and what is promised of it."""

    max_batched_tokens: int
    max_num_seqs: int
    kv_tokens: int
    ttft_s: float
    itl_s: float


Sample = tuple[float, float, float]
"""Prefill tokens, tokens in the cache and seconds."""
Plane = tuple[float, float, float]
"""Seconds of itself, for each prefill token and for each token in the cache."""


def _recent() -> deque[float]:
    return deque(maxlen=MOST_SAMPLES)


@dataclass(slots=True, kw_only=True)
class StepModel:
    """Samples of steps, and the plane through them."""

    samples: list[Sample] = field(default_factory=list)
    plane: Plane | None = None
    prompts: deque[float] = field(default_factory=_recent)
    """Mean tokens of prompts."""
    contexts: deque[float] = field(default_factory=_recent)
    """Mean tokens of a decoding sequence."""
    prefills: deque[float] = field(default_factory=_recent)
    """Prefill tokens of a step, from the first prefill on."""

    def take(self, seen: Pass) -> None:
        if self.prefills or seen.prefill_tokens:
            self.prefills.append(seen.prefill_tokens)
        if seen.num_decoding:
            self.contexts.append(seen.decode_tokens / seen.num_decoding)
        if seen.wall_s is not None:
            self.samples.append((seen.prefill_tokens, seen.decode_tokens, seen.wall_s))
            if len(self.samples) > MOST_SAMPLES:
                self._retire()
            self.plane = plane_through(self.samples)

    @property
    def is_ready(self) -> bool:
        return self.plane is not None

    def step_s(self, prefill_tokens: float, decode_tokens: float) -> float:
        own_s, prefill_s, decode_s = self.plane or (0.0, 0.0, 0.0)
        return max(LEAST_S, own_s + prefill_s * prefill_tokens + decode_s * decode_tokens)

    def ttft_s(self, queued: float, decode_tokens: float, limits: Limits, hits: float) -> float:
        """Return what the next prompt waits for, chunk by chunk, its own prefill included."""
        left, total_s = (queued + _mean(self.prompts)) * (1 - hits), 0.0
        while left > 0:
            total_s += self.step_s(min(left, limits.max_batched_tokens), decode_tokens)
            left -= limits.max_batched_tokens
        return total_s

    def itl_s(self, decode_tokens: float) -> float:
        """Return the step with one sequence more."""
        return self.step_s(_mean(self.prefills), decode_tokens + _mean(self.contexts))

    def best_rate(self, prompt: float, output: float, limits: Limits, hits: float) -> float:
        """Return the requests per second of the largest batch within both limits, at least one."""
        best = 0.0
        context = prompt + output / 2
        for batch in range(1, _most(prompt, output, limits) + 1):
            tokens = batch * context
            chunk = min(batch * prompt * (1 - hits) / max(1.0, output), limits.max_batched_tokens)
            step_s = self.step_s(chunk, tokens)
            ttft_s = self.ttft_s(chunk, tokens, limits, 0.0)
            if step_s > limits.itl_s or ttft_s > limits.ttft_s:
                return best or batch / (output * step_s)
            best = batch / (output * step_s)
        return best

    def _retire(self) -> None:
        """Drop the oldest sample of the bucket that has most."""
        lows = [min(each[axis] for each in self.samples) for axis in (0, 1)]
        highs = [max(each[axis] for each in self.samples) for axis in (0, 1)]
        keys = [_bucket(each, lows, highs) for each in self.samples]
        ((fullest, _),) = Counter(keys).most_common(1)
        del self.samples[keys.index(fullest)]


def _most(prompt: float, output: float, limits: Limits) -> int:
    """Return the largest batch that the cache holds and that prefill keeps up with."""
    held = max(1, int(limits.kv_tokens / max(1.0, prompt + output / 2)))
    balanced = limits.max_batched_tokens - prompt / output
    return max(1, min(held, limits.max_num_seqs, math.floor(balanced)))


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _bucket(sample: Sample, lows: Sequence[float], highs: Sequence[float]) -> tuple[int, ...]:
    return tuple(
        min(AXIS - 1, int((value - low) / (high - low) * AXIS)) if high > low else 0
        for value, low, high in zip(sample, lows, highs, strict=False)
    )


def plane_through(samples: Sequence[Sample]) -> Plane | None:
    """Return the plane of least squares; None: too few samples, all alike, or it falls."""
    if len(samples) < LEAST_SAMPLES:
        return None
    x0, y0, z0 = (_mean([each[axis] for each in samples]) for axis in range(3))
    centred = [(x - x0, y - y0, z - z0) for x, y, z in samples]
    xx, xy, yy = (sum(s[i] * s[j] for s in centred) for i, j in ((0, 0), (0, 1), (1, 1)))
    xz, yz = (sum(s[i] * s[2] for s in centred) for i in (0, 1))
    determinant = xx * yy - xy * xy
    if determinant <= LEAST_S * xx * yy:
        return None
    prefill_s, decode_s = (
        (xz * yy - yz * xy) / determinant,
        (yz * xx - xz * xy) / determinant,
    )
    if prefill_s < 0 or decode_s < 0:
        return None
    return z0 - prefill_s * x0 - decode_s * y0, prefill_s, decode_s
