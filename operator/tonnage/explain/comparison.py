"""The other ways to split a model over the same GPUs, beside the one that was chosen."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import Sizing, size_with
from tonnage.sizing.split import Parallelism, kv_is_replicated
from tonnage.units import significant


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitAnswer:
    """What one split would give, or why it will not do."""

    parallelism: Parallelism
    requests_longest: float = 0.0
    """Of the maximum length, that a replica holds at once."""
    requests_per_s: float = 0.0
    refusal: str = ""

    def __str__(self) -> str:
        if self.refusal:
            return f"{self.parallelism} will not do: {self.refusal}"
        return (
            f"{self.parallelism} holds {significant(self.requests_longest)} requests and sustains "
            f"{significant(self.requests_per_s)} requests/s"
        )


def compared_splits(sizing: Sizing) -> tuple[SplitAnswer, ...]:
    """Answer for each split of the same GPUs of a model whose cache some of them would copy.

    Nothing for other models: among their splits only the rate differs, and the best was taken.
    """
    request, num_gpus = sizing.request, sizing.flags.parallelism.num_gpus
    if not kv_is_replicated(request.shape, num_gpus):
        return ()
    answers = tuple(_answers(sizing))
    return answers if len(answers) > 1 else ()


def _answers(sizing: Sizing) -> Iterator[SplitAnswer]:
    free = replace(sizing.request, flags=None, measured_kv_tokens=None)
    for split in splits_for(free, num_gpus=sizing.flags.parallelism.num_gpus):
        try:
            other = size_with(free, split)
        except SizingError as refusal:
            yield SplitAnswer(parallelism=split, refusal=str(refusal))
        else:
            yield SplitAnswer(
                parallelism=split,
                requests_longest=other.memory_ceiling_longest,
                requests_per_s=other.goodput_requests_per_s,
            )
