"""What engines report, as values: a busy engine of which a test changes what it is about."""

from dataclasses import replace

from builders import a_model, a_prior
from tonnage.estimate.attainment import (
    AttainmentCounts,
    SloWindow,
    TargetResult,
    judge_window,
)
from tonnage.estimate.metrics import BUSY_SCRAPES, LENGTH_WINDOWS, WINDOWS
from tonnage.estimate.posterior import ObjectPosterior, SpeedPosterior
from tonnage.estimate.samples import EngineSamples, WindowRates
from tonnage.estimate.speed import (
    PromptShape,
    busy_window,
    predicted_gap_s,
    predicted_prefill_s,
    with_speed,
)
from tonnage.sizing.request import Flags
from tonnage.sizing.split import Parallelism

ARRIVALS = {"completed_per_s": 2, "in_flight_per_s": 0, "rejected_per_s": 0}
STEPS = {
    "computed_prompt_tokens_per_s": 4000,
    "token_gap_s_per_s": 20,
    "token_gaps_per_s": 500,
    "prefill_s_per_s": 0.4,
    "prefills_per_s": 2,
    "preemptions_per_s": 0,
}
UNTIMED = ("seconds", 0.0)
RATES = frozenset(WindowRates._fields)


def a_posterior(**changes):
    """Learned constants of a well-known engine."""
    posterior = SpeedPosterior(
        overhead_factor=1.0,
        bandwidth_efficiency=0.7,
        prefill_efficiency=0.5,
        covariance=(0.01, 0.0, 0.0, 0.0025, 0.0, 0.01),
        num_windows=10,
        num_steps=10_000,
        learned_at_s=5,
    )
    return replace(posterior, **changes)


def missed_before(target="TTFT p95", quantile=0.95):
    """What is remembered of a window in which load made the only request late."""
    late = TargetResult(target=target, quantile=quantile, num_requests=1, late=1, late_by_load=1)
    window = SloWindow(
        verdicts=(late,),
        load=0.9,
        replicas=2,
        requests_per_s_each=1.0,
        seconds=1.0,
        steepness=6.0,
    )
    return judge_window(ObjectPosterior(), AttainmentCounts(), window, now_s=0.0).tally


def an_engine(pod="a", **changes):
    """An engine with 20 requests running, 2 finished per second, 40 ms between tokens.

    What arrivals are made of is the same over every window. It says nothing of its cache.
    ``arrivals`` and ``lengths`` are by window, and all that is told of these; another rate is that
    of the busy window, of arrivals that of all.
    """
    rates = {name: changes.pop(name) for name in RATES & changes.keys()}
    interval_s = changes.setdefault("scrape_interval_s", 15)
    arrivals, lengths = changes.pop("arrivals", None), changes.pop("lengths", {})
    everywhere = {name: rates.pop(name) for name in (*ARRIVALS, "seconds") if name in rates}
    windows = {}
    for scrapes in WINDOWS:
        told = {"seconds": (scrapes - 1) * interval_s}
        told |= ARRIVALS | everywhere if arrivals is None else said(arrivals.get(scrapes))
        told |= STEPS if scrapes == BUSY_SCRAPES else {}
        told |= said(lengths.get(scrapes))
        told |= rates if scrapes == BUSY_SCRAPES else {}
        windows[scrapes] = WindowRates(**told)
    state = {"running": 20, "waiting": 0, "mean_running": 20, "kv_usage_fraction": 0.5, "age_s": 5}
    return EngineSamples(**{"pod": pod, "engine": "0", "windows": windows, **state, **changes})


def with_lengths(engine, lengths):
    """The same engine with requests of other lengths, by window; of another window it says none."""
    blank = dict.fromkeys(each for each in RATES if each.startswith(("finished", "started")))
    windows = {
        scrapes: window._replace(**blank | said(lengths.get(scrapes)))
        for scrapes, window in engine.windows.items()
    }
    return replace(engine, windows=windows)


def with_figures(engine, *, lengths=None, **changes):
    """The same engine with other figures; rates are of the busy window."""
    engine = engine if lengths is None else with_lengths(engine, lengths)
    rates = {name: changes.pop(name) for name in RATES & changes.keys()}
    windows = dict(engine.windows) | {BUSY_SCRAPES: engine.busy._replace(**rates)}
    return replace(engine, **{"windows": windows} | changes)


def without_arrivals(engine, *windows):
    """The same engine, that does not say what ended in these windows; by default in none."""
    blind = {
        scrapes: engine.windows[scrapes]._replace(completed_per_s=None, in_flight_per_s=None)
        for scrapes in windows or WINDOWS
    }
    return replace(engine, windows=dict(engine.windows) | blind)


def said(window):
    """What a window says, by name; of one that is not there nothing."""
    known = window._asdict() if window else {}
    return {
        name: value
        for name, value in known.items()
        if value is not None and (name, value) != UNTIMED
    }


def of_lengths(prompt_tokens=2000, output_tokens=500, *, computed_tokens=None, per_s=2):
    """What an engine with such requests tells of one window; nothing cached unless it is said."""
    return WindowRates(
        finished_per_s=per_s,
        finished_prompt_tokens_per_s=prompt_tokens * per_s,
        finished_output_tokens_per_s=output_tokens * per_s,
        started_per_s=per_s,
        started_prompt_tokens_per_s=prompt_tokens * per_s,
        computed_prompt_tokens_per_s=per_s
        * (prompt_tokens if computed_tokens is None else computed_tokens),
    )


def steady_lengths(*args, **changes):
    """The same over all windows."""
    return dict.fromkeys(LENGTH_WINDOWS, of_lengths(*args, **changes))


def a_machine(**changes):
    """``a_shard`` at ``some_speeds`` with the constants that hold before any is learned."""
    return a_model(**{"constants": a_prior(), **changes})


def with_efficiency(machine, bandwidth_efficiency):
    constants = replace(machine.constants, bandwidth_efficiency=bandwidth_efficiency)
    return replace(machine, constants=constants)


PROMPTS = PromptShape(
    new_tokens=2000,
    context_tokens=1000,
    scv=0.5,
    most_tokens=8192,
    chunks=1,
    answer_tokens=250,
)
"""Of 2,000 tokens in the mean, each computed in one step."""


def some_flags(**changes):
    flags = Flags(
        max_num_seqs=64,
        max_num_batched_tokens=8192,
        gpu_memory_utilization=0.92,
        parallelism=Parallelism(),
    )
    return replace(flags, **changes)


def slowed(constants, factor):
    """The constants of an engine of which every part of a step takes so many times as long."""
    return with_speed(
        constants,
        (factor, constants.bandwidth_efficiency / factor, constants.prefill_efficiency / factor),
    )


def samples_of(machine, *, flags=None, prompts=PROMPTS, context_tokens=2250, **state):
    """What an engine reports that takes exactly as long as the formula says of this machine.

    ``state``: sequences that decode in the mean, prompts that start per second.
    """
    decoding, prompts_per_s = state["decoding"], state.get("prompts_per_s", 0)
    gap_s = prefill_s = 0.02
    for _ in range(60):  # prompts come during a gap, and make it longer
        samples = an_engine(
            running=decoding,
            mean_running=decoding,
            token_gap_s_per_s=decoding,
            token_gaps_per_s=decoding / gap_s,
            computed_prompt_tokens_per_s=prompts_per_s * prompts.new_tokens,
            prefills_per_s=prompts_per_s,
            prefill_s_per_s=prompts_per_s * prefill_s,
        )
        window = window_of(samples, flags=flags, prompts=prompts, context_tokens=context_tokens)
        gap_s = predicted_gap_s(machine, window)
        prefill_s = predicted_prefill_s(machine, window)
    return samples


def window_of(samples, *, flags=None, prompts=PROMPTS, context_tokens=2250, window_s=60):
    return busy_window(
        samples,
        window_s=window_s,
        context_tokens=context_tokens,
        prompts=prompts,
        flags=flags or some_flags(),
    )


def a_window(machine, *, flags=None, prompts=PROMPTS, context_tokens=2250, **state):
    """What an engine did in a minute that takes exactly as long as the formula says."""
    shape = {"flags": flags, "prompts": prompts, "context_tokens": context_tokens}
    return window_of(samples_of(machine, **shape, **state), **shape)
