"""What was needed of late, told in engines as they are known to be."""

from dataclasses import replace

import pytest

from builders import a_prior
from fleet_builders import NOW_S, a_memory, a_state
from tonnage.control.needed import in_steps_of
from tonnage.estimate.belief import Asked, Belief
from tonnage.estimate.learner import prior_posterior

PRIOR = prior_posterior(a_prior(), spread_fraction=0.2)
NEEDS = ((NOW_S - 600, 13), (NOW_S - 60, 9))


def believed(*, times, key="k"):
    """Engines whose steps take so many times those of the prior."""
    slow = replace(
        PRIOR,
        overhead_factor=times * PRIOR.overhead_factor,
        bandwidth_efficiency=PRIOR.bandwidth_efficiency / times,
        prefill_efficiency=PRIOR.prefill_efficiency / times,
    )
    asked = Asked(key=key, middle=PRIOR, slow=slow, since_s=NOW_S)
    return Belief(constants=a_prior(), prior=PRIOR, widest=PRIOR, posterior=PRIOR, asked=asked)


def told(*beliefs):
    """What the needs are after one belief and the next."""
    memory = a_memory(a_state(), recent_needs=NEEDS)
    for belief in beliefs:
        memory = in_steps_of(memory, belief)
    return [replicas for _, replicas in memory.recent_needs]


def test_fewer_were_needed_of_engines_that_turn_out_faster():
    # 13 * 0.75 / 1.15 = 8.5, and 9 * 0.75 / 1.15 = 5.9.
    assert told(believed(times=1.15), believed(times=0.75)) == [9, 6]


@pytest.mark.parametrize("times", [0.98, 1.0, 1.3])
def test_as_many_were_needed_where_they_do_not(times):
    assert told(believed(times=1.0), believed(times=times)) == [13, 9]


def test_a_belief_that_wavers_takes_nothing_away_twice():
    fast, slow = believed(times=0.9), believed(times=1.0)

    # 13 * 0.9 = 11.7, and 9 * 0.9 = 8.1.
    assert told(slow, fast, slow, fast, slow, fast) == [12, 9]


def test_other_engines_say_nothing_of_these():
    assert told(believed(times=1.0), believed(times=0.5, key="other")) == [13, 9]


def test_nothing_is_told_anew_at_first():
    assert told(believed(times=0.5)) == [13, 9]
