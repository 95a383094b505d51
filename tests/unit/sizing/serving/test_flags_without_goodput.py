"""A split on which short runs find a rate that longer ones do not."""

from builders import a_sizing_request
from tonnage.sizing.parallelism.draft import rank_of
from tonnage.sizing.serving import flags
from tonnage.sizing.serving.goodput import NOTHING, Length
from tonnage.sizing.split import Parallelism


def test_is_left_as_it_is_with_a_goodput_of_none(monkeypatch):
    request, known = a_sizing_request(), flags.goodput
    shard = rank_of(request, Parallelism())
    monkeypatch.setattr(
        flags,
        "goodput",
        lambda *args, **words: (
            known(*args, **words) if words["length"] is Length.COARSE else NOTHING
        ),
    )
    search, widest = (
        flags.FlagSearch(request, shard, lambda: None),
        flags.largest_fitting(request, shard),
    )

    coarse = search.coarse(widest)

    assert coarse.goodput.requests_per_s > 0
    assert search.refine(coarse).goodput is NOTHING
