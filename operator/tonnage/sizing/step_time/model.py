"""What tells the time of a step of an engine group: its rank, GPU, constants and drafts."""

from dataclasses import dataclass, replace

from tonnage.catalog.engine_speed import SpeedConstants
from tonnage.sizing.options import Speculation
from tonnage.sizing.parallelism.shard import Shard
from tonnage.sizing.step_time.speeds import Speeds
from tonnage.sizing.step_time.step import Step, StepTime, step_time


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimeModel:
    """The time of any step of one engine group."""

    shard: Shard
    speeds: Speeds
    constants: SpeedConstants
    speculation: Speculation | None = None

    @property
    def dp_size(self) -> int:
        """Data-parallel ranks, each with requests and a cache of its own."""
        return self.shard.parallelism.data

    @property
    def tokens_per_step(self) -> float:
        """That a decoding sequence gets in the mean."""
        return self.speculation.tokens_per_step if self.speculation else 1.0

    @property
    def tokens_verified(self) -> int:
        """Of the token budget that a decoding sequence takes."""
        return self.speculation.tokens_verified if self.speculation else 1

    def steps(self, tokens: float) -> float:
        """Return the steps in which so many tokens are decoded, in the mean."""
        return self.speculation.steps(tokens) if self.speculation else tokens

    def step(self, step: Step) -> StepTime:
        """Return the time of a step, the passes of draft layers included."""
        if self.speculation:
            step = replace(step, tokens_per_sequence=self.tokens_verified)
        time = step_time(self.shard, self.speeds, self.constants, step)
        draft = self.shard.draft
        return time if draft is None else self._with_drafts(time, step, draft)

    def _with_drafts(self, time: StepTime, step: Step, draft: Shard) -> StepTime:
        """Add the passes after the first: of one token each, and none of them schedules."""
        constants = replace(self.constants, per_step_s=0.0, per_sequence_s=0.0)
        one = Step(num_sequences=step.num_sequences, context_tokens=step.context_tokens)
        each = step_time(draft, self.speeds, constants, one)
        passes = self.tokens_verified - 2
        return replace(
            time,
            draft_s=passes * each.total_s,
            draft_bytes=passes * each.decode_bytes,
            decode_flop=time.decode_flop + passes * each.decode_flop,
        )
