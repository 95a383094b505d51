"""What is kept of an answer, in whatever pieces it comes."""

import gc
import json
import math
import tracemalloc
import weakref
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tonnage.cluster.answer import (
    FEW,
    MAX_LABEL_CHARACTERS,
    AnswerReader,
    Labels,
    LabelSets,
    SeriesFilter,
)
from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.series import UNUSABLE
from tonnage.units import KIB

LABELS = ("namespace", "pod", "engine")


def a_document(*items, **more):
    return {"status": "success", "data": {"resultType": "vector", "result": list(items)}, **more}


def an_item(value="1", at_s=1000, **labels):
    return {"metric": labels, "value": [at_s, value]}


def read(body, *, pods=None, max_series=100, piece_bytes=None, sets=None):
    """Read a body, a document as it is or as text, in pieces of a size."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    reader = AnswerReader(
        sets or LabelSets(SeriesFilter(labels=LABELS, pods=pods)), max_series=max_series
    )
    step = piece_bytes or max(1, len(data))
    for start in range(0, len(data), step):
        reader.feed(data[start : start + step])
    return reader.end()


def reason(body, **more):
    with pytest.raises(PrometheusError) as caught:
        read(body, **more)
    return caught.value.reason


class TestSeries:
    def test_have_the_labels_that_are_read_and_no_others(self):
        [series] = read(a_document(an_item(pod="a", engine="0", instance="10.0.0.1"))).series

        assert series.labels == {"pod": "a", "engine": "0"}

    @pytest.mark.parametrize("name", ["__proto__", "constructor", "", "__name__"])
    def test_with_an_odd_label_are_read(self, name):
        [series] = read(a_document(an_item(pod="a", **{name: "x"}))).series

        assert series.labels == {"pod": "a"}

    def test_with_10_000_labels_are_read(self):
        many = {f"label_{number}": "x" for number in range(9_999)}

        [series] = read(a_document(an_item(pod="a", **many))).series

        assert series.labels == {"pod": "a"}

    @pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf", "1e400", "", "many", None])
    def test_without_a_finite_value_are_there_without_one_and_counted(self, value):
        answer = read(a_document(an_item(value, pod="a"), an_item(pod="b")))

        found = {each.labels["pod"]: each.value for each in answer.series}
        assert found == {"a": UNUSABLE, "b": 1}
        assert answer.num_dropped == 1

    @pytest.mark.parametrize("at_s", ["NaN", "Inf", None])
    def test_without_a_time_are_dropped_and_counted(self, at_s):
        answer = read(a_document(an_item(at_s=at_s, pod="a")))

        assert (answer.series, answer.num_dropped) == ([], 1)

    @given(st.floats())
    def test_have_finite_values_or_none_whatever_prometheus_writes(self, value):
        answer = read(a_document(an_item(str(value), pod="a")))

        expected = value if math.isfinite(value) else UNUSABLE
        assert [each.value for each in answer.series] == [expected]

    @pytest.mark.parametrize(
        "item",
        [
            {"metric": {}},
            {"metric": {}, "value": None},
            {"metric": {}, "histogram": [1, {"count": "1"}]},
        ],
    )
    def test_without_a_sample_are_dropped_and_counted(self, item):
        answer = read(a_document(item, an_item(pod="kept")))

        assert [each.labels["pod"] for each in answer.series] == ["kept"]
        assert answer.num_dropped == 1

    @pytest.mark.parametrize(
        "item",
        [
            {},
            {"metric": None, "value": None},
            {"metric": {}, "value": [1]},
            {"metric": {}, "value": [1, "1", "1"]},
            {"metric": {}, "value": [1, ["1"]]},
            {"metric": {}, "value": [{}, "1"]},
            {"metric": {"pod": ["a"]}, "value": [1, "1"]},
            {"metric": [["pod", "a"]], "value": {"0": 1}},
            [],
            [[{"metric": {}}]],
            None,
            7,
            "text",
        ],
    )
    def test_that_no_prometheus_writes_refuse_the_answer(self, item):
        assert reason(a_document(an_item(pod="a"), item)) == "BadAnswer"

    @pytest.mark.parametrize(("length", "num_kept"), [(256, 1), (257, 0)])
    def test_with_a_label_longer_than_any_name_are_dropped(self, length, num_kept):
        answer = read(a_document(an_item(engine="x" * length)))

        assert MAX_LABEL_CHARACTERS == 256
        assert (len(answer.series), answer.num_dropped) == (num_kept, 1 - num_kept)

    @pytest.mark.parametrize("values", [("1", "2"), ("2", "1")])
    def test_that_are_there_twice_count_once_with_the_larger_value(self, values):
        items = [an_item(value, pod="a", replica=value) for value in values]

        answer = read(a_document(*items))

        assert [each.value for each in answer.series] == [2]
        assert answer.num_dropped == 1

    def test_with_a_label_told_twice_have_the_last(self):
        body = json.dumps(a_document(an_item(pod="a"))).replace('"pod": "a"', '"pod":"b","pod":"a"')

        [series] = read(body.encode()).series

        assert series.labels == {"pod": "a"}

    def test_of_pods_that_are_not_asked_for_are_no_series_and_not_counted(self):
        items = [an_item(namespace=space, pod="a") for space in ("blue", "green")]

        answer = read(a_document(*items, an_item("NaN")), pods=frozenset({("blue", "a")}))

        assert [each.labels["namespace"] for each in answer.series] == ["blue"]
        assert answer.num_dropped == 0

    def test_of_a_tick_share_their_labels(self):
        sets = LabelSets(SeriesFilter(labels=LABELS))

        [first], [second] = (
            read(a_document(an_item(value, pod="a")), sets=sets).series for value in "12"
        )

        assert first.labels is second.labels
        assert (first.value, second.value) == (1, 2)


class TestLabelSets:
    PODS = frozenset({("blue", "a"), ("blue", "b")})

    def labels(self, sets, *pods, **own):
        body = a_document(*(an_item(namespace="blue", pod=pod, **own) for pod in pods))
        return [each.labels for each in read(body, sets=sets).series]

    def test_are_the_same_objects_in_the_next_tick(self):
        sets = LabelSets(SeriesFilter(labels=LABELS, pods=self.PODS))
        before = self.labels(sets, "a", "b")

        after = self.labels(sets.for_next(SeriesFilter(labels=LABELS, pods=self.PODS)), "a", "b")

        assert list(map(id, before)) == list(map(id, after))

    def test_of_pods_that_are_gone_are_forgotten_and_of_new_ones_read(self):
        sets = LabelSets(SeriesFilter(labels=LABELS, pods=self.PODS))
        [one, _] = self.labels(sets, "a", "b", "c")

        sets = sets.for_next(
            SeriesFilter(labels=LABELS, pods=frozenset({("blue", "a"), ("blue", "c")}))
        )

        after = self.labels(sets, "a", "b", "c")
        assert [each["pod"] for each in after] == ["a", "c"]
        assert after[0] is one

    def test_do_not_grow_with_what_pods_invent(self):
        kept = SeriesFilter(labels=LABELS, pods=self.PODS)
        sets, most = LabelSets(kept), 0
        for number in range(4 * FEW):
            sets = sets.for_next(kept)
            self.labels(sets, "a", engine=str(number))
            most = max(most, sets.number)

        assert most <= FEW + 1


class TestPieces:
    @pytest.mark.parametrize("piece_bytes", [1, 2, 3, 7, 64])
    def test_change_nothing(self, piece_bytes):
        document = a_document(
            an_item("0.5", pod="a", engine="\u00e9\U0001f600"),
            an_item("NaN", pod="b"),
            an_item("3", pod="c"),
            warnings=["one"],
        )

        answer = read(document, piece_bytes=piece_bytes)

        assert [each.value for each in answer.series] == [0.5, UNUSABLE, 3]
        assert (answer.is_partial, answer.num_dropped) == (True, 1)

    @given(st.data())
    def test_missing_at_the_end_are_noticed(self, data):
        body = json.dumps(a_document(an_item(pod="a"))).encode()
        length = data.draw(st.integers(0, len(body) - 1))

        assert reason(body[:length]) == "BadAnswer"

    @given(st.binary(max_size=200))
    def test_of_anything_else_are_refused_and_nothing_worse(self, body):
        assert reason(body, piece_bytes=5) == "BadAnswer"


LABEL_TEXTS = st.text(max_size=12) | st.sampled_from(["a", "b", "x" * 300, '"', "\\\\", "{", "é😀"])
ITEMS = st.one_of(
    st.builds(
        lambda value, at_s, labels: an_item(value, at_s, **labels),
        st.sampled_from(["1", "0.5", "NaN", "+Inf", "1e-9", "-2", "", "many", '"'])
        | st.floats(allow_nan=False).map(str),
        st.sampled_from([1000, 1000.25, "NaN", -1, 1e22, None]),
        st.dictionaries(st.sampled_from([*LABELS, "le", "other"]), LABEL_TEXTS, max_size=4),
    ),
    st.sampled_from([None, 7, "text", [], {}, {"metric": {}}, {"value": [1, "1"]}]),
)


def outcome(body, **more):
    """What an answer comes to: its series in any order, or why there is none."""
    try:
        answer = read(body, **more)
    except PrometheusError as error:
        return error.reason
    series = sorted((sorted(each.labels.items()), each[1:]) for each in answer.series)
    return series, answer.num_dropped, answer.is_partial


class TestHowAnAnswerIsWritten:
    @given(
        st.lists(ITEMS, max_size=8),
        st.integers(1, 200),
        st.sampled_from([None, frozenset({("a", "b"), ("b", "a")})]),
        st.booleans(),
    )
    def test_changes_nothing(self, items, piece_bytes, pods, is_ascii):
        document = a_document(*items, warnings=["one"])
        short = json.dumps(document, separators=(",", ":"), ensure_ascii=is_ascii).encode()

        assert outcome(short, piece_bytes=piece_bytes, pods=pods) == outcome(document, pods=pods)

    @given(
        st.lists(ITEMS, max_size=8),
        st.lists(ITEMS, max_size=2),
        st.integers(1, 200),
        st.data(),
    )
    def test_changes_nothing_where_labels_were_read_before(self, items, more, piece_bytes, data):
        places = [{"namespace": "a", "pod": "b"}, {"namespace": "b", "pod": "a", "engine": "0"}]
        known = [an_item(str(number), **place) for number, place in enumerate(places * 2)]
        pods = frozenset({("a", "b"), ("b", "a")})
        sets = LabelSets(SeriesFilter(labels=LABELS, pods=pods))
        bodies = [
            json.dumps(each, separators=(",", ":"))
            for each in (a_document(*known, *items), a_document(*known, *more, *items, *known))
        ]
        at = data.draw(st.integers(0, len(bodies[1])))
        odd = data.draw(st.sampled_from(["", "", "", '"', "]}", '"]}', ",", "7", "x"]))
        bodies[1] = bodies[1][:at] + odd + bodies[1][at:]
        outcome(bodies[0].encode(), pods=pods, sets=sets)

        found = outcome(bodies[1].encode(), pods=pods, sets=sets, piece_bytes=piece_bytes)

        blank = bodies[1].replace('"result":[', '"result": [').encode()
        assert found == outcome(blank, pods=pods)

    @given(st.data())
    def test_changes_nothing_where_it_is_cut_or_broken(self, data):
        document = a_document(an_item(pod="a"), an_item("2", pod="b"))
        short = json.dumps(document, separators=(",", ":"))
        at = data.draw(st.integers(0, len(short) - 1))
        broken = (
            short[:at]
            + data.draw(st.sampled_from(["", "x", '"', "{", "]", ",", "\\"]))
            + short[at:]
        )

        assert outcome(short[:at].encode()) == "BadAnswer"
        assert outcome(broken.encode(), piece_bytes=7) == outcome(
            broken.replace('"result":[', '"result": [').encode(), piece_bytes=7
        )

    def test_is_told_apart_from_what_looks_like_it_elsewhere(self):
        item = {"metric": {"pod": "a"}, "value": [1000, "1"]}
        body = {"status": "success", "infos": {"result": [item]}}
        body["data"] = {"resultType": "vector", "other": {"result": [item]}, "result": [item]}
        short = json.dumps(body, separators=(",", ":")).encode()

        assert outcome(short) == outcome(body)


def test_labels_and_their_decoder_form_no_ring():
    labels = LabelSets(SeriesFilter(labels=LABELS))
    read(a_document(an_item(pod="a")), sets=labels)
    before = weakref.ref(labels)
    del labels

    gc.collect()

    assert before() is None


MANY = 200_000


class TestHostileDocuments:
    @pytest.mark.parametrize(
        "document",
        [
            a_document(an_item(pod="x" * 10**6)),
            a_document(an_item(**{"x" * 10**6: "pod"})),
            a_document({"metric": {"pod": [[]] * MANY}, "value": [1, "1"]}),
            a_document({"metric": {}, "value": [1] * MANY}),
            a_document({"metric": {}, "value": [1, [[]] * MANY]}),
            a_document({f"m{number}": {} for number in range(MANY)}),
            a_document(*[{}] * MANY),
            a_document(*[1] * MANY),
            a_document(*[{"metric": {}}] * MANY),
            a_document(warnings=[""] * MANY),
            a_document(isPartial=[[]] * MANY),
            {"padding": [[]] * MANY},
        ],
    )
    def test_take_no_more_memory_than_their_bytes_twice(self, document):
        body = json.dumps(document, separators=(",", ":")).encode()
        reader = AnswerReader(LabelSets(SeriesFilter(labels=LABELS)), max_series=100)
        tracemalloc.start()

        for start in range(0, len(body), 4096):
            reader.feed(body[start : start + 4096])
        with suppress(PrometheusError):
            reader.end()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert peak_bytes < 2.5 * len(body) + 100 * KIB

    @pytest.mark.parametrize("text", ["\x7f" * 10**6, "\x7f" * 10**6 + "\N{GRINNING FACE}"])
    def test_of_one_value_take_what_its_text_takes(self, text):
        body = json.dumps(a_document({"metric": {}, "value": [1, text]}), ensure_ascii=False)
        reader = AnswerReader(LabelSets(SeriesFilter(labels=LABELS)), max_series=100)
        reader.feed(body.encode())
        tracemalloc.start()

        reader.end()
        _, peak_bytes = tracemalloc.get_traced_memory()
        tracemalloc.stop()

        assert peak_bytes < 5.2 * len(body) + 100 * KIB  # 4 bytes a character, and the body

    @pytest.mark.parametrize("label", [b"\xed\xa0\x80", b"\xff\xfe"])
    def test_labels_that_are_no_text_refuse_no_other_series(self, label):
        well, odd = an_item(pod="a"), an_item(pod="LABEL")
        body = json.dumps(a_document(well, odd)).encode().replace(b"LABEL", label)
        reader = AnswerReader(LabelSets(SeriesFilter(labels=LABELS)), max_series=100)
        reader.feed(body)

        found = reader.end()

        assert [labels["pod"].strip("\ufffd") for labels in found.series.labels] == ["a", ""]


class TestDocument:
    @pytest.mark.parametrize(
        ("more", "is_partial"),
        [
            ({}, False),
            ({"warnings": []}, False),
            ({"warnings": None}, False),
            ({"warnings": ["PromQL: a store did not answer"]}, True),
            ({"warnings": [[]]}, True),
            ({"isPartial": False}, False),
            ({"isPartial": True}, True),
            ({"infos": ["a metric might not be a counter"]}, False),
        ],
    )
    def test_that_warns_is_partial(self, more, is_partial):
        assert read(a_document(an_item(pod="a"), **more)).is_partial is is_partial
        assert read({**more, **a_document(an_item(pod="a"))}).is_partial is is_partial

    def test_of_a_success_only_is_read(self):
        assert reason(a_document(an_item(pod="a")) | {"status": "error"}) == "BadAnswer"

    def test_may_say_its_type_last(self):
        data = {"result": [an_item(pod="a")], "resultType": "vector"}

        assert len(read({"data": data, "status": "success"}).series) == 1

    @pytest.mark.parametrize(("num_series", "refusal"), [(3, None), (4, "QueryTooLarge")])
    def test_has_so_many_series(self, num_series, refusal):
        items = [an_item(pod=str(number)) for number in range(num_series)]

        if refusal:
            assert reason(a_document(*items), max_series=3) == refusal
        else:
            assert len(read(a_document(*items), max_series=3).series) == num_series


class TestLabels:
    def test_are_a_mapping_of_what_there_is(self):
        labels = Labels({"namespace": 0, "pod": 1, "le": 2}, ("blue", "a", None))

        assert dict(labels) == {"namespace": "blue", "pod": "a"}
        assert len(labels) == 2
        assert labels.get("le") is None
        assert labels.get("engine", "") == ""
        assert repr(labels) == "{'namespace': 'blue', 'pod': 'a'}"
        assert labels == {"namespace": "blue", "pod": "a"}

    def test_of_sets_begun_anew_are_equal_without_a_look_at_each_name(self, monkeypatch):
        """A flood begins them anew in each tick: 20,000 for each metric, 12 us each by name."""
        one, same = (self.of("blue", "a") for _ in range(2))
        monkeypatch.setattr(Labels, "__getitem__", None)

        assert one == same
        assert one != self.of("blue", "b")

    @staticmethod
    def of(*values):
        return LabelSets(SeriesFilter(labels=LABELS[: len(values)])).add(values)


@pytest.fixture
def no_collector():
    """Only what nothing refers to goes."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


class TestAReaderThatIsLetGo:
    """Its series are the memory of a tick; a collector that is waited for would keep an hour's."""

    def gone(self, pieces, *, ends=True):
        """What stays of a reader, and of an item that it kept, when nobody holds it any more."""
        reader = AnswerReader(LabelSets(SeriesFilter(labels=LABELS)), max_series=2)
        kept = weakref.ref(reader)
        with suppress(PrometheusError):
            for piece in pieces:
                reader.feed(piece)
            if ends:
                reader.end()
        del reader
        return kept() is None

    def test_leaves_nothing_behind(self, no_collector):
        assert self.gone([json.dumps(a_document(an_item(pod="a"))).encode()])

    def test_before_its_end_leaves_nothing_behind(self, no_collector):
        whole = json.dumps(a_document(an_item(pod="a"))).encode()

        assert self.gone([whole[:-5]], ends=False)
        assert self.gone([whole[:-5]])

    @pytest.mark.parametrize(
        "body",
        [
            b'{"status": nonsense',
            json.dumps(a_document(*[an_item(pod=each) for each in "abc"])).encode(),
            json.dumps(a_document(an_item(pod="x" * 10**6))).encode(),
        ],
        ids=["no-json", "too-many", "too-large"],
    )
    def test_that_refused_an_answer_leaves_nothing_behind(self, body, no_collector):
        assert self.gone([body])
