"""How long a pod that is to stop may take: until the longest answer that is expected is through.

From its deletion on a pod still gets requests until endpoints and routers have forgotten it, then
the engine finishes what it has, then its processes end. Kubernetes kills what is left when the
whole of that is over.
"""

import math
from dataclasses import dataclass
from typing import Final

from tonnage.api.spec import Spec
from tonnage.memoize import memoize
from tonnage.sizing.plan import Sizing
from tonnage.sizing.serving.ttft import typical_ttft_s
from tonnage.sizing.workload import Workload
from tonnage.units import round_up

PRE_STOP_S: Final = 15
"""Time for endpoints and routers to forget a pod before its engine is told to stop."""
EXIT_S: Final = 15
"""For the processes of an engine that has nothing left to do."""
LEAST_DRAIN_S: Final = 45
MOST_GRACE_S: Final = 600
"""A pod that hangs holds its GPUs for as long, and a node that is drained waits for it."""
MOST_DRAIN_S: Final = MOST_GRACE_S - PRE_STOP_S - EXIT_S
STEP_S: Final = 15
SLACK: Final = 0.1
"""By which an answer may outlast what pods give it before that counts as too little: both stand on
estimates, and engines restart for another one."""
EXPONENTIAL_P99: Final = -math.log(0.01)
"""Times the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LongestAnswer:
    """The answer that 99 of 100 are no longer than, on an engine that is full."""

    tokens: float
    first_token_s: float
    token_s: float

    @property
    def seconds(self) -> float:
        return self.first_token_s + self.tokens * self.token_s

    def outlasts(self, drain_s: float) -> bool:
        """Tell whether it would be cut off by more than estimates are sure of."""
        return self.seconds > (1 + SLACK) * drain_s


def longest_answer_tokens(spec: Spec, workload: Workload) -> float:
    """Return the p99 of an answer's tokens, within the maximum length.

    The mean is that of the workload, measured where it is known; around it stays the spread that
    the spec gives, else that of the exponential distribution which sizing takes answers to have.
    """
    given = spec.demand.output_tokens if spec.demand else None
    spread = given.p99 / given.mean if given and given.p99 else EXPONENTIAL_P99
    return min(workload.output_tokens * spread, float(spec.context_length))


@memoize
def longest_answer(spec: Spec, sizing: Sizing) -> LongestAnswer:
    """Return the longest answer expected: its first token at the SLO's limit, the rest at capacity.

    Without a limit the first token comes when that of a mean prompt does.
    """
    request, state = sizing.request, sizing.at_capacity
    limits_s = [target.limit_s for target in request.slo.ttft]
    return LongestAnswer(
        tokens=longest_answer_tokens(spec, request.workload),
        first_token_s=max(limits_s)
        if limits_s
        else typical_ttft_s(sizing.replica, request.workload, state),
        token_s=state.tpot_s,
    )


def drain_time_s(answer: LongestAnswer, *, running_s: int | None) -> int:
    """Return the seconds that an engine gets to finish what it answers.

    ``running_s``: what the pods that run give it, which stays as long as it is enough: a longer
    time costs nothing, since an engine that is empty ends. None: there are none.
    """
    if running_s is not None and not answer.outlasts(running_s):
        return running_s
    return min(MOST_DRAIN_S, max(LEAST_DRAIN_S, round_up(math.ceil(answer.seconds), STEP_S)))


def grace_period_s(drain_s: int) -> int:
    """Return ``terminationGracePeriodSeconds``, which counts from a pod's deletion."""
    return PRE_STOP_S + drain_s + EXIT_S


def drain_allowed_s(grace_s: int) -> int:
    """Return the time to finish that a grace period leaves pods like ours."""
    return max(0, grace_s - PRE_STOP_S - EXIT_S)
