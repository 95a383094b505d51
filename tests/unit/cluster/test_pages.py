"""Objects of lists and watches: one at a time, and of one that is too large little is kept."""

import json

import msgspec
import pytest

from tonnage.cluster.pages import (
    MOST_LEVELS,
    MOST_LINE_BYTES,
    MOST_OBJECT_BYTES,
    MOST_STATUS_BYTES,
    Lines,
    read_object,
    read_page,
    reduce_event,
    reduce_object,
    without_depths,
)

PADDING = "x" * MOST_OBJECT_BYTES
NAMES = {"name": "large", "namespace": "serving", "uid": "u-1", "resourceVersion": "7"}
LARGE = {"kind": "Deployment", "metadata": NAMES | {"labels": {"a": PADDING}}}


def packed(value):
    return json.dumps(value, separators=(",", ":")).encode()


def objects(data):
    return [read_object(each) for each in read_page(data).items]


class TestAPage:
    @pytest.mark.parametrize("indent", [None, 2])
    def test_gives_its_objects_and_where_it_goes_on(self, indent):
        told = {"kind": "PodList", "metadata": {"continue": "more"}, "items": [{"a": 1}, {"b": []}]}
        data = json.dumps(told, indent=indent).encode()

        assert objects(data) == [{"a": 1}, {"b": []}]
        assert read_page(data).metadata == {"continue": "more"}

    def test_names_an_object_that_is_too_large(self):
        first, large, last = objects(packed({"items": [{"a": 1}, LARGE, {"b": 2}]}))

        assert (first, last) == ({"a": 1}, {"b": 2})
        size = {"oversizedBytes": len(packed(LARGE))}
        assert large == {"kind": "Deployment", "metadata": NAMES} | size

    def test_counts_bytes_and_not_characters(self):
        of_two_bytes = {"metadata": NAMES | {"labels": {"a": "é" * (MOST_OBJECT_BYTES // 2)}}}
        text = json.dumps({"items": [of_two_bytes]}, ensure_ascii=False)

        [found] = objects(text.encode())
        assert found["oversizedBytes"] > MOST_OBJECT_BYTES

    @pytest.mark.parametrize("broken", [b"", b"[]", b"{", b'{"items":[1', b"x"])
    def test_that_breaks_off_is_none(self, broken):
        with pytest.raises(ValueError, match=r"truncated|Expected|malformed"):
            read_page(broken)

    @pytest.mark.parametrize(("told", "items"), [(b"{}", msgspec.UNSET), (b'{"items":null}', None)])
    def test_without_objects_is_a_list_where_it_says_so(self, told, items):
        assert read_page(told).items is items


MODEL = {
    "apiVersion": "tonnage.dev/v1alpha1",
    "kind": "ModelDeployment",
    "metadata": {
        "annotations": {"a": "b"},
        "creationTimestamp": "2026-11-01T00:00:00Z",
        "deletionTimestamp": "2026-11-02T00:00:00Z",
        "finalizers": ["example.test/held"],
        "generation": 3,
        **NAMES,
        "ownerReferences": [{"name": "a"}, {"kind": "b", "uid": "u-2", "controller": True}],
    },
    "spec": {"operatorClass": "blue", "contextLength": 8192},
    "status": {"phase": 1},
}


class TestAReducedObject:
    """Of a custom resource the API server writes the metadata in the order of the alphabet."""

    @pytest.mark.parametrize(
        "large",
        [
            {"annotations": {"a": PADDING}},
            {"labels": {"a": PADDING}},
            {"finalizers": [f"example.test/{each:060}" for each in range(5000)]},
            {"ownerReferences": [{"name": f"{each:060}"} for each in range(5000)]},
            {"managedFields": [{"fieldsV1": {f"f:{each:060}": {}}} for each in range(5000)]},
        ],
        ids=lambda each: next(iter(each)),
    )
    def test_says_what_it_is_whatever_makes_it_large(self, large):
        text = packed(MODEL | {"metadata": MODEL["metadata"] | large})

        reduced = json.loads(reduce_object(text))

        dropped = {"annotations", "finalizers", "ownerReferences"}
        metadata = {key: MODEL["metadata"][key] for key in MODEL["metadata"].keys() - dropped}
        if "ownerReferences" not in large:
            metadata["ownerReferences"] = [MODEL["metadata"]["ownerReferences"][1]]
        assert reduced == {
            "apiVersion": "tonnage.dev/v1alpha1",
            "kind": "ModelDeployment",
            "metadata": metadata,
            "spec": {"operatorClass": "blue"},
            "status": {"phase": 1},
            "oversizedBytes": len(text),
        }

    def test_has_no_status_that_is_large_itself(self):
        text = packed(MODEL | {"status": {"a": PADDING}})

        assert "status" not in json.loads(reduce_object(text))
        assert len(reduce_object(text)) < MOST_STATUS_BYTES

    def test_is_itself_where_it_is_small(self):
        assert reduce_object(packed(MODEL)) == packed(MODEL)

    @pytest.mark.parametrize("text", [b"[]", b"{}", b'{"metadata":{"name":3}}'])
    def test_is_none_without_a_name(self, text):
        with pytest.raises(ValueError, match=r"Expected|missing"):
            reduce_object(text + b" " * MOST_OBJECT_BYTES)


def events(data, piece_bytes):
    lines = Lines()
    return [
        json.loads(reduce_event(line))
        for start in range(0, len(data), piece_bytes)
        for line, _ in lines.take(data[start : start + piece_bytes])
    ]


class TestAWatch:
    @pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
    def test_is_read_line_by_line_however_it_comes(self, piece_bytes):
        told = [{"type": "ADDED", "object": {"a": "é"}}, {"type": "BOOKMARK", "object": {}}]
        data = b"\n".join([*map(packed, told), b""])

        assert events(data, piece_bytes) == told

    def test_names_an_object_that_is_too_large_and_goes_on(self):
        told = [{"type": "DELETED", "object": LARGE}, {"type": "BOOKMARK", "object": {}}]
        data = b"\n".join([*map(packed, told), b""])

        large, last = events(data, 10_000)
        assert (large["type"], large["object"]["metadata"]) == ("DELETED", NAMES)
        assert large["object"]["oversizedBytes"] == len(packed(LARGE))
        assert last == told[1]

    def test_holds_no_more_of_a_long_line_than_an_object_of_etcd_has(self):
        lines, pieces = Lines(), 2 * MOST_LINE_BYTES // MOST_OBJECT_BYTES
        for _ in range(pieces):
            assert list(lines.take(b"x" * MOST_OBJECT_BYTES)) == []

        [(line, num_bytes)] = lines.take(b"\n")
        assert (len(line), num_bytes) == (MOST_LINE_BYTES, 2 * MOST_LINE_BYTES)
        with pytest.raises(ValueError, match="malformed"):
            reduce_event(line)


def nested(levels, value="1"):
    return '{"a":' * levels + value + "}" * levels


@pytest.mark.parametrize("levels", [MOST_LEVELS + 1, 990, 9_000])
def test_of_what_nests_deeper_than_is_read_null_is_read(levels):
    texts = ['"', "\\", "{[", '\\"}', "é"]
    page = f'{{"items": [{json.dumps(texts)}, {nested(levels)}, [{{}}]]}}'.encode()

    before, deep, after = json.loads(without_depths(page))["items"]

    assert (before, after) == (texts, [{}])
    for _ in range(MOST_LEVELS - 2):
        deep = deep["a"]
    assert deep is None


@pytest.mark.parametrize("value", ["1", '"{{{"', '"\\\\"', '"\\"["'])
def test_what_nests_less_is_as_it_was(value):
    text = nested(MOST_LEVELS, value).encode()

    assert without_depths(text) is text
