"""What a rival's rule is shown, made up by hand."""

from tonnage.estimate.series import Series
from tonnage.replay.rivals.profile import Profile
from tonnage.replay.rivals.rule import Probe, SeenPod, Signals, Told
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism
from tonnage.sizing.workload import Slo, Target

FLAGS = Flags(
    max_num_seqs=256,
    max_num_batched_tokens=8192,
    gpu_memory_utilization=0.9,
    parallelism=Parallelism(tensor=1),
)


def told(**changes):
    """What is told of an object: 100,000 KV tokens, 10 requests/s of a replica as believed."""
    return Told(
        **{
            "flags": FLAGS,
            "min_replicas": 1,
            "max_replicas": 100,
            "slo": Slo(
                ttft=(Target(quantile=0.9, limit_s=2.0),),
                tpot=(Target(quantile=0.9, limit_s=0.05),),
            ),
            "kv_tokens": 100_000,
            "prefill_tokens_per_s": 10_000.0,
            "probe": Probe(input_tokens=2000, output_tokens=201, ttft_s=0.2, itl_s=0.01),
            "believed_requests_per_s": 10.0,
            "true_requests_per_s": 8.0,
            "profile": Profile(
                ttft_s=lambda tokens: tokens / 10_000,
                itl_s=lambda num, context: 0.01 + 1e-7 * num * context,
            ),
        }
        | changes
    )


def a_signal(asked=4, *, at_s=0.0, ready=None, about=None, **answers):
    """Signals of so many pods, each of an answer's values of one of them in order."""
    ready = asked if ready is None else ready
    seen = tuple(
        SeenPod(name=f"pod-{n}", age_s=1000.0, ready_for_s=900.0 if n < ready else None)
        for n in range(asked)
    )
    return Signals(
        at_s=at_s,
        asked=asked,
        pods=seen,
        answers={name: list(_series(values)) for name, values in answers.items()},
        told=about or told(),
    )


def _series(values):
    """A value for each pod; or for the first one, by upper bound of a histogram."""
    if isinstance(values, dict):
        for bound, value in values.items():
            le = "+Inf" if bound == float("inf") else str(bound)
            yield Series(labels={"pod": "pod-0", "le": le}, value=value, evaluated_at_s=0.0)
        return
    for number, value in enumerate(values):
        if value is not None:
            labels = {"namespace": "serving", "pod": f"pod-{number}", "engine": "0"}
            yield Series(labels=labels, value=value, evaluated_at_s=0.0)
