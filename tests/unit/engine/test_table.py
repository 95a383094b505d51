"""The columns: what is read off them, and rows that come one by one."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_builders import costs, limits, table
from tonnage.engine.core import Engine
from tonnage.engine.table import RequestTable

ROW = {"prompt_tokens": 16, "output_tokens": 4, "arrival_s": 0.0}


def served():
    """Three requests: first tokens after 1, 2 and 4 s, last ones after 1, 12 and 10 s."""
    requests = table((0, 9, 1), (1, 9, 11), (2, 9, 4))
    for number, (first_s, ended_s) in enumerate([(1, 1), (3, 13), (6, 12)]):
        requests.first_token_s[number], requests.ended_s[number] = first_s, ended_s
    return requests


@pytest.mark.parametrize(("limit_s", "late"), [(0.5, 3), (1, 2), (2, 1), (3.9, 1), (4, 0)])
def test_late_starts_waited_longer_than_the_limit(limit_s, late):
    assert served().late_starts(0, 3, limit_s) == late


@pytest.mark.parametrize(("limit_s", "slow"), [(0.9, 2), (1.0, 1), (1.9, 1), (2.0, 0)])
def test_slow_outputs_took_longer_per_token_after_the_first(limit_s, slow):
    # 10 s for 10 tokens, and 6 s for 3; one with a single token has no such time.
    assert served().slow_outputs(0, 3, limit_s) == slow


def test_latencies_are_those_of_the_requests_asked_for_in_their_order():
    ttft_s, tpot_s = served().latencies_s([2, 0, 1])

    assert list(ttft_s) == [4, 1, 2]
    assert list(tpot_s) == [2, 0, 1]


@given(st.lists(st.integers(0, 9), min_size=1), st.lists(st.floats(0, 1), max_size=4))
def test_spread_is_that_of_sorted_latencies(waits, quantiles):
    requests = table(*[(0, 1, 3)] * (len(waits) + 2))
    for number, wait in enumerate(waits, 1):
        requests.first_token_s[number], requests.ended_s[number] = wait, wait + 2 * (9 - wait)

    found = requests.spread_s(1, 1 + len(waits), quantiles)

    expected = [sorted(waits), sorted(9 - wait for wait in waits)]
    places = [max(0, math.ceil(quantile * len(waits)) - 1) for quantile in quantiles]
    assert found == tuple([each[place] for place in places] for each in expected)


def test_preemptions_of_all_requests_add_up():
    requests = served()
    requests.preemptions[0], requests.preemptions[2] = 2, 5

    assert requests.num_preempted() == 7


def test_only_requests_of_the_range_count():
    requests = served()

    assert requests.late_starts(2, 3, 0.5) == 1
    assert requests.slow_outputs(0, 2, 0.5) == 1
    assert requests.wait_s(1, 3) == 2 + 4


def test_a_table_grows_by_doubling_and_keeps_what_it_held():
    requests = RequestTable([7], [8], [3], [0.5])
    for number in range(1, 200):
        assert requests.add(**ROW | {"prompt_tokens": number, "arrival_s": number}) == number

    assert requests.size == 200
    assert requests.capacity == 260  # 1 + 64, then doubled: 65, 130, 260
    assert (requests.prompt_tokens[0], requests.output_tokens[0]) == (7, 8)
    assert (requests.cached_tokens[0], requests.arrival_s[0]) == (3, 0.5)
    assert [requests.prompt_tokens[number] for number in (1, 64, 65, 199)] == [1, 64, 65, 199]
    assert requests.arrival_s[130] == 130


def test_a_row_that_is_used_again_is_as_new():
    requests = RequestTable((), (), (), ())
    engine = Engine(limits(), costs(), requests, is_logged=True)
    first = requests.add(**ROW)
    engine.submit(first)
    while engine.num_outstanding:
        engine.step()
    engine.release([first])
    second = requests.add(prompt_tokens=5, output_tokens=2, cached_tokens=1, arrival_s=9.0)

    assert second == first
    assert (requests.prompt_tokens[second], requests.output_tokens[second]) == (5, 2)
    assert (requests.cached_tokens[second], requests.arrival_s[second]) == (1, 9.0)
    assert requests.state[second] == requests.emitted[second] == requests.computed[second] == 0
    assert requests.ended_s[second] == requests.first_token_s[second] == 0


class Run:
    """Requests that come, end and go away; rows are given back as soon as may be, or never."""

    def __init__(self, *, is_released, **changes):
        small = {"block_size": 4, "num_blocks": 25, "max_model_len": 100, "acceptance_rate": 1.0}
        prices = costs(0.01, kv_s_per_token=1e-5, prefill_s_per_token=1e-4)
        self.table = RequestTable((), (), (), ())
        self.engine = Engine(limits(**small | changes), prices, self.table, is_logged=True)
        self.is_released = is_released
        self.names, self.aborted, self.order = {}, [], []

    def submit(self, name, prompt, output):
        number = self.table.add(
            prompt_tokens=prompt, output_tokens=output, arrival_s=self.engine.now_s
        )
        self.engine.submit(number)
        self.names[number] = name
        return number

    def step(self):
        self.engine.step()
        finished = [number for rank in self.engine.ranks for number in rank.finished]
        self.order += [(self.names.pop(number), self.engine.now_s) for number in finished]
        if self.is_released:
            self.engine.release(finished + self.aborted)
            self.aborted = []

    def abort(self, number, name):
        if self.names.get(number) == name:
            self.engine.abort(number)
            self.aborted.append(number)
            del self.names[number]

    def serve(self, asked):
        for name, (prompt, output, steps, is_impatient) in enumerate(asked):
            number = self.submit(name, prompt, output)
            for _ in range(steps):
                if self.engine.num_outstanding:
                    self.step()
            if is_impatient:
                self.abort(number, name)
        while self.engine.num_outstanding:
            self.step()
        return self.order


@given(
    st.lists(
        st.tuples(st.integers(1, 60), st.integers(1, 40), st.integers(0, 6), st.booleans()),
        min_size=1,
        max_size=60,
    ),
    st.sampled_from([0, 0, 2]),
    st.integers(1, 3),
)
def test_rows_used_again_serve_as_rows_of_their_own(asked, drafted, num_ranks):
    changes = {"num_draft_tokens": drafted, "num_ranks": num_ranks}
    again = Run(is_released=True, **changes)
    apart = Run(is_released=False, **changes)

    assert again.serve(asked) == apart.serve(asked)
    assert again.table.size <= apart.table.size == len(asked)
