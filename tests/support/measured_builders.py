"""What engines report, as values: a busy engine of which a test changes what it is about."""

from dataclasses import replace

from builders import a_prior, a_replica
from tonnage.estimate.samples import EngineSamples, LongSamples
from tonnage.estimate.speed import BusyStep
from tonnage.sizing.step_time.step import Step


def an_engine(pod="a", **changes):
    """An engine with 20 requests running, 2 finished per second, 40 ms between tokens."""
    samples = EngineSamples(
        pod=pod,
        engine="0",
        age_s=5,
        running=20,
        waiting=0,
        mean_running=20,
        kv_usage_fraction=0.5,
        completions_per_s=2,
        backlog_growth_per_s=0,
        rejections_per_s=0,
        prompt_tokens_per_s=4000,
        computed_prompt_tokens_per_s=4000,
        output_tokens_per_s=500,
        token_gap_s_per_s=20,
        token_gaps_per_s=500,
        steps_per_s=25,
        preemptions_per_s=0,
        kv_tokens=100_000,
    )
    return replace(samples, **changes)


def long_samples(**changes):
    """Two requests per second of 2,000 prompt and 500 output tokens, nothing cached."""
    samples = LongSamples(
        requests_per_s=2,
        prompt_tokens_per_s=4000,
        output_tokens_per_s=1000,
        started_prompt_tokens_per_s=4000,
        computed_prompt_tokens_per_s=4000,
    )
    return replace(samples, **changes)


def a_machine(**changes):
    """``a_shard`` at ``some_speeds`` with the constants that hold before any is learned."""
    return replace(a_replica(constants=a_prior()), **changes)


def with_efficiency(machine, bandwidth_efficiency):
    constants = replace(machine.constants, bandwidth_efficiency=bandwidth_efficiency)
    return replace(machine, constants=constants)


def a_busy_step(machine, *, num_steps=1000, **work):
    """A step of 20 sequences with 2,000 tokens each, exactly as long as the machine takes."""
    step = Step(**{"num_sequences": 20, "context_tokens": 40_000, **work})
    return BusyStep(
        step_s=machine.step(step).total_s, num_steps=num_steps, work=step, busy_fraction=1.0
    )
