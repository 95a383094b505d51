"""The glossary: in order, short, and of the terms that are shown."""

import pytest

from tonnage.estimate.metrics import BUCKETS, CACHE, COLUMNS, DRAM_ACTIVE, metrics_of
from tonnage.explain.glossary import GLOSSARY, VLLM_NAMES

NAMES = list(GLOSSARY)
METRICS = {*metrics_of(COLUMNS), *BUCKETS, CACHE, DRAM_ACTIVE}


def test_terms_are_in_the_order_of_a_dictionary():
    assert sorted(NAMES, key=str.lower) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_meaning_fits_in_two_lines(name):
    assert 10 < len(GLOSSARY[name]) <= 160


@pytest.mark.parametrize("name", ["goodput", "SLO target", "load line", "memory ceiling", "MBU"])
def test_what_a_plan_speaks_of_is_explained(name):
    assert name in GLOSSARY


def test_the_queue_is_the_metric_that_is_asked_for():
    assert VLLM_NAMES["queue"] in METRICS


def test_what_vllm_calls_a_term_is_of_one_that_there_is():
    assert GLOSSARY.keys() > VLLM_NAMES.keys()
