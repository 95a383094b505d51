"""The bench that chooses constants without the family that they are judged on."""

import pytest
from replay_cases import Case
from replay_left_out import KNOBS, SHIPPED, VARIANTS, page_of
from replay_runs import Draw

from tonnage.estimate import forecast, headroom
from tonnage.estimate.forecast import History

OTHERS = [each for each in VARIANTS if each.knob]
TARGET = 0.99


@pytest.mark.parametrize("variant", OTHERS, ids=str)
def test_a_value_is_set_wherever_it_is_read_and_taken_back(variant):
    def read():
        return [variables[key] for variables, key in variant.knob.places]

    shipped = read()
    with variant.applied():
        assert read() == [variant.value] * len(shipped)
        assert variant.value not in shipped
    assert read() == shipped
    assert len({repr(each) for each in shipped}) == 1


def test_the_code_reads_what_is_set():
    [first] = [each for each in KNOBS if each.name == "headroom before any record"]
    [late] = [each for each in KNOBS if each.name == "late of what is above the plan"]
    before = headroom.headroom(History().rises, quantile=TARGET)
    late.set(1 / 12)
    try:
        assert headroom.headroom(History().rises, quantile=TARGET) < before
    finally:
        late.set(1 / 3)
    shipped = first.shipped
    first.set((1.0, 0.0, 0.0, 0.0, 0.0, 0.0))
    try:
        assert forecast.History().rises == (1.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    finally:
        first.set(shipped)


def figures(kept, gpu_hours):
    return {"attainment": kept, "gpu_hours": gpu_hours}


def test_a_family_has_no_say_in_what_it_is_judged_by():
    one, other = (
        Draw(case=Case(name=name), start_s=240.0, speed=1.0, seed=0) for name in ("a", "b")
    )
    found = {each: {one: figures(1.0, 5.0), other: figures(1.0, 5.0)} for each in VARIANTS}
    found[OTHERS[0]] = {one: figures(0.5, 1.0), other: figures(1.0, 4.0)}

    rows = page_of(found).splitlines()

    [of_a] = [row for row in rows if row.startswith("| a |")]
    [of_b] = [row for row in rows if row.startswith("| b |")]
    assert of_a == f"| a | {OTHERS[0]} | 0 of 1 | 50.00% | 50.0% | 1.0 " + (
        "| 1 of 1 | 100.00% | 100.0% | 5.0 |"
    )
    assert of_b.startswith(f"| b | {SHIPPED} | 1 of 1 ")
