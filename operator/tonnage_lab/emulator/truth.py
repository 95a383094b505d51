"""What the emulator knows and the operator has to find out.

The file named by ``TONNAGE_LAB_TRUTH`` holds the hidden constants as JSON. The step time has one
of two forms: the linear one below, in plain seconds, or the product's own formula with other
constants than the catalogue's.
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from tonnage.engine.step_costs import StepCosts, linear_costs
from tonnage_lab.emulator.arguments import Arguments

ENVIRONMENT: Final = "TONNAGE_LAB_TRUTH"


class TruthError(ValueError):
    """The truth file is missing, or says something that cannot be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearStep:
    """``per_step_s + weight_read_s + per_sequence_s * n + kv_s_per_token * C + prefill * p``.

    ``n`` are the sequences that decode on all data-parallel ranks; ``C`` and ``p``, what they
    attend to and the prompt tokens, are those of the slowest rank.
    """

    per_step_s: float
    per_sequence_s: float = 0.0
    weight_read_s: float = 0.0
    kv_s_per_token: float = 0.0
    prefill_s_per_token: float = 0.0

    def costs(self, max_num_seqs: int) -> StepCosts:
        """Return the cost of a step with up to so many sequences."""
        costs = linear_costs(
            per_step_s=self.per_step_s + self.weight_read_s,
            per_sequence_s=self.per_sequence_s,
            kv_s_per_token=self.kv_s_per_token,
            prefill_s_per_token=self.prefill_s_per_token,
            max_num_seqs=max_num_seqs,
        )
        return replace(costs, own_prefill_s_per_token=self.prefill_s_per_token)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepWork:
    """What vLLM's analytic counters would say of a step, per GPU."""

    weight_bytes: float
    kv_bytes_per_token: float
    flop_per_token: float

    def read_bytes(self, context_tokens: int) -> float:
        return self.weight_bytes + self.kv_bytes_per_token * context_tokens

    def write_bytes(self, num_tokens: int) -> float:
        return self.kv_bytes_per_token * num_tokens

    def flop(self, num_tokens: int) -> float:
        return self.flop_per_token * num_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineTruth:
    """The hidden constants of one engine."""

    step: Mapping[str, Any]
    kv_tokens: int | None = None
    """Of one data-parallel rank; None: the product's own estimate for these arguments."""
    state_blocks: int | None = None
    """Of the cache of a hybrid model, one for each slot at least; None: it has no states."""
    load_s: float = 0.0
    server_s: float = 0.0
    """That the API server holds each request before the engine has it."""
    block_size: int = 16
    max_model_len: int | None = None
    """Of the checkpoint, for when the flag is absent."""
    cached_prompt_fraction: float = 0.0
    host_cached_prompt_fraction: float = 0.0
    """Of a prompt, that comes from the host's memory where a cache is there."""
    transfer_s_per_token: float = 0.0
    """Of a prompt whose cache comes from another engine, or from the host; may change."""
    acceptance_rate: float = 0.0
    """Chance that a draft token is right when all before it were."""
    work: StepWork | None = None
    path: Path | None = None
    """Where it was read."""

    def now(self) -> "EngineTruth":
        """Return what the file says by now, for what may change while the engine runs."""
        return EngineTruth.load(self.path) if self.path else self

    @classmethod
    def load(cls, path: Path) -> "EngineTruth":
        """Read the file.

        Raises:
            TruthError: it is missing, no JSON, or its fields are wrong.
        """
        try:
            return cls.from_dict(json.loads(path.read_text()) | {"path": path})
        except (OSError, ValueError, TypeError) as error:
            raise TruthError(f"{ENVIRONMENT}={path}: {error}") from error

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "EngineTruth":
        work = values.get("work")
        return cls(**{**values, "work": StepWork(**work) if work else None})

    @classmethod
    def from_environment(cls) -> "EngineTruth":
        path = os.environ.get(ENVIRONMENT)
        if not path:
            raise TruthError(f"{ENVIRONMENT} must name the file with the hidden constants")
        return cls.load(Path(path))


def _formula_module() -> ModuleType:
    """Import what half the product hangs on, for those emulators that need it only."""
    from tonnage_lab.emulator import formula  # noqa: PLC0415

    return formula


def step_costs(truth: EngineTruth, arguments: Arguments) -> StepCosts:
    """Return what the steps of an engine started with these arguments cost.

    Raises:
        TruthError: the step has none of the known forms, or not their fields.
    """
    if "gpu" in truth.step:
        costs: StepCosts = _formula_module().formula_costs(
            truth.step, arguments, acceptance_rate=truth.acceptance_rate
        )
        return costs
    try:
        linear = LinearStep(**truth.step)
    except TypeError as error:
        raise TruthError(f"step: {error}; for the formula it needs gpu") from error
    return linear.costs(arguments.max_num_seqs * arguments.data_parallel_size)


def kv_tokens(truth: EngineTruth, arguments: Arguments) -> int:
    """Return the KV tokens of one data-parallel rank.

    Raises:
        TruthError: the file does not say.
    """
    if arguments.num_gpu_blocks_override is not None:
        return arguments.num_gpu_blocks_override * block_size(truth, arguments)
    if truth.kv_tokens is not None:
        return truth.kv_tokens
    if "gpu" not in truth.step:
        raise TruthError("kv_tokens is null, and nothing else says how much KV cache there is")
    num_tokens: int = _formula_module().formula_kv_tokens(
        truth.step, arguments, acceptance_rate=truth.acceptance_rate
    )
    return num_tokens


def block_size(truth: EngineTruth, arguments: Arguments) -> int:
    """Return the tokens per KV block: as asked for, else what the engine would choose."""
    return arguments.block_size or truth.block_size
