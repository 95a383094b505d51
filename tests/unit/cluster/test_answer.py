"""What is kept of an answer, in whatever pieces it comes."""

import gc
import json
import tracemalloc
import weakref
from contextlib import suppress
from math import inf, isfinite

import pytest
from hypothesis import given
from hypothesis import strategies as st

from page_builders import for_everybody, labels_of, pages_of
from tonnage.cluster.calls import PrometheusError
from tonnage.cluster.queries import AnswerReader
from tonnage.units import KIB, MIB

POD = ("serving", "a")


def a_document(*items, **more):
    return {"status": "success", "data": {"resultType": "matrix", "result": list(items)}, **more}


def an_item(value="1", at_s=1000, *, pod="a", **labels):
    return {"metric": labels_of("running", ("serving", pod)) | labels, "values": [[at_s, value]]}


def read(body, *, max_series=100, piece_bytes=None, scrapes=None, most_kept_bytes=MIB):
    """Read a body, a document as it is or as text, in pieces; return what was said and whether it
    is partial.
    """
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader = AnswerReader(scrapes or for_everybody(), max_series=max_series)
    step = piece_bytes or max(1, len(data))
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
    is_partial = reader.end(most_kept_bytes=most_kept_bytes)
    return reader.answered, is_partial


def told(body, **more):
    """The pages of each pod."""
    answered, _ = read(body, **more)
    return {key[1]: pages_of(rows) for key, rows in answered.engines.items()}


def reason(body, **more):
    with pytest.raises(PrometheusError) as caught:
        read(body, **more)
    return caught.value.reason


class TestSeries:
    @pytest.mark.parametrize("name", ["__proto__", "constructor", "", "instance"])
    def test_with_an_odd_label_are_read(self, name):
        assert told(a_document(an_item(**{name: "x"}))) == {"a": {1000: {0: 1}}}

    def test_with_10_000_labels_are_read(self):
        many = {f"label_{number}": "x" for number in range(9_999)}

        assert told(a_document(an_item(**many))) == {"a": {1000: {0: 1}}}

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e400", "", "many", None])
    def test_without_a_finite_value_are_there_without_one_and_counted(self, value):
        answered, _ = read(a_document(an_item(value), an_item(pod="b")))

        pages = {key[1]: pages_of(rows)[1000][0] for key, rows in answered.engines.items()}
        assert pages == {"a": inf, "b": 1}
        assert answered.num_dropped == 1

    @pytest.mark.parametrize("at_s", ["NaN", "Inf", None])
    def test_without_a_time_are_dropped(self, at_s):
        assert told(a_document(an_item(at_s=at_s), an_item(pod="b")))["b"] == {1000: {0: 1}}

    @given(st.floats())
    def test_have_finite_values_or_none_whatever_prometheus_writes(self, value):
        [found] = told(a_document(an_item(str(value))))["a"][1000].values()

        assert found == (value if isfinite(value) and 0 <= value <= 1e7 else inf)

    @pytest.mark.parametrize(
        "item",
        [
            {},
            {"metric": {}},
            {"metric": {}, "value": [1, "1"]},
            {"metric": {}, "values": None},
            {"metric": {}, "values": [1]},
            {"metric": {}, "values": [[1]]},
            {"metric": {}, "values": [[1, "1", "1"]]},
            {"metric": {}, "values": [[1, ["1"]]]},
            {"metric": {}, "values": [[{}, "1"]]},
            {"metric": {"pod": ["a"]}, "values": [[1, "1"]]},
            {"metric": [["pod", "a"]], "values": [[1, "1"]]},
            [],
            [[{"metric": {}}]],
            None,
            7,
            "text",
        ],
    )
    def test_that_no_prometheus_writes_refuse_the_answer(self, item):
        assert reason(a_document(an_item(), item)) == "BadAnswer"

    @pytest.mark.parametrize(("length", "num_kept"), [(256, 1), (257, 0)])
    def test_of_an_engine_with_a_name_longer_than_any_are_none(self, length, num_kept):
        assert len(told(a_document(an_item(engine="x" * length)))) == num_kept

    @pytest.mark.parametrize("values", [("1", "2"), ("2", "1")])
    def test_that_are_there_twice_count_once_with_the_larger_value(self, values):
        items = [an_item(value, replica=str(number)) for number, value in enumerate(values)]

        assert told(a_document(*items)) == {"a": {1000: {0: 2}}}

    def test_of_pods_that_are_not_asked_for_are_none_and_not_counted(self):
        scrapes = for_everybody()
        scrapes.expect(frozenset({POD}))

        answered, _ = read(a_document(an_item("NaN", pod="b"), an_item()), scrapes=scrapes)

        assert {key[1] for key in answered.engines} == {"a"}
        assert answered.num_dropped == 0

    def test_whose_labels_are_no_text_refuse_no_other(self):
        bad = json.dumps(a_document(an_item(pod="BAD"), an_item())).encode()

        assert told(bad.replace(b"BAD", b"\xff"))["a"] == {1000: {0: 1}}


class TestPieces:
    @pytest.mark.parametrize("piece_bytes", [1, 7, 64, 10_000])
    def test_change_nothing(self, piece_bytes):
        document = a_document(*(an_item(str(number), pod=str(number)) for number in range(20)))

        assert told(document, piece_bytes=piece_bytes) == told(document)

    @given(st.data())
    def test_missing_at_the_end_are_noticed(self, data):
        body = json.dumps(a_document(an_item())).encode()
        cut = data.draw(st.integers(0, len(body) - 1))

        assert reason(body[:cut]) == "BadAnswer"

    @given(st.binary() | st.text().map(str.encode))
    def test_of_anything_else_are_refused_and_nothing_worse(self, body):
        assert reason(body) == "BadAnswer"

    def test_are_read_alike_where_labels_were_read_before(self):
        scrapes, document = for_everybody(), a_document(an_item("3"), an_item("4", pod="b"))

        assert told(document, scrapes=scrapes) == told(document, scrapes=scrapes)


class TestHostileDocuments:
    @pytest.mark.parametrize(
        "document",
        [
            b"[" * 100_000,
            b'{"a":' * 100_000,
            b'{"status":"success","data":' + b"[" * 100_000,
            json.dumps(a_document(*[{"metric": {}, "values": []}] * 5_000)).encode(),
            json.dumps(a_document(an_item("9" * 100_000))).encode(),
        ],
        ids=["lists", "objects", "data", "series", "a number"],
    )
    def test_take_no_more_memory_than_their_bytes_a_few_times(self, document):
        tracemalloc.start()
        with suppress(PrometheusError):
            read(document, max_series=10_000, piece_bytes=64 * KIB)
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert peak_bytes < 4 * len(document) + 2000 * KIB


class TestDocument:
    @pytest.mark.parametrize(
        ("more", "is_partial"),
        [
            ({}, False),
            ({"warnings": []}, False),
            ({"warnings": None}, False),
            ({"isPartial": False}, False),
            ({"isPartial": True}, True),
            ({"warnings": ["x"]}, True),
            ({"infos": ["x"]}, False),
        ],
    )
    def test_that_warns_is_partial(self, more, is_partial):
        assert read(a_document(an_item(), **more))[1] == is_partial

    def test_of_a_success_with_a_matrix_only_is_read(self):
        assert reason(a_document() | {"status": "error"}) == "BadAnswer"
        vector = {"resultType": "vector", "result": []}
        assert reason(a_document() | {"data": vector}) == "BadAnswer"

    @pytest.mark.parametrize(("num_series", "is_refused"), [(100, False), (101, True)])
    def test_has_so_many_series(self, num_series, is_refused):
        document = a_document(*(an_item(pod=str(number)) for number in range(num_series)))

        if is_refused:
            assert reason(document) == "QueryTooLarge"
        else:
            assert len(told(document)) == num_series


@pytest.mark.parametrize("body", [a_document(an_item()), b"{", a_document(7)])
def test_a_reader_that_is_let_go_leaves_nothing_behind(body):
    gc.disable()
    try:
        scrapes = for_everybody()
        reader = AnswerReader(scrapes, max_series=10)
        gone = weakref.ref(reader)
        reader.feed(body if isinstance(body, bytes) else json.dumps(body).encode())
        with suppress(PrometheusError):
            reader.end(most_kept_bytes=MIB)
        del reader

        assert gone() is None
    finally:
        gc.enable()
