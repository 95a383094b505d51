from types import MappingProxyType

import pytest

from tonnage.packed import Packed


@pytest.mark.parametrize("value", [None, {}, [1, 2.5, True], {"Grüße": "日本 \ud800"}, "x" * 5000])
def test_a_value_comes_back_as_it_was(value):
    assert Packed.of(value).value == value


def test_the_order_of_keys_and_the_kind_of_mapping_make_no_difference():
    one, other = {"a": 1, "b": {"c": 2}}, MappingProxyType({"b": {"c": 2}, "a": 1})

    assert Packed.of(one) == Packed.of(other)
    assert Packed.of(one) != Packed.of({"a": 2, "b": {"c": 2}})


def test_text_that_repeats_takes_less():
    text = Packed.of([{"name": f"metric-{n}", "value": n} for n in range(100)])

    assert len(text.compressed) < len(text.text) / 3
