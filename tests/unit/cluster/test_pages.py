"""Objects of lists and watches: one at a time, and of one that is too large the name."""

import json

import pytest

from tonnage.cluster.pages import (
    HEAD_BYTES,
    MOST_OBJECT_BYTES,
    Lines,
    ListPage,
    Oversized,
    read_event,
)

PADDING = "x" * MOST_OBJECT_BYTES
NAMES = {"name": "large", "namespace": "serving", "uid": "u-1", "resourceVersion": "7"}
LARGE = {"kind": "Deployment", "metadata": NAMES | {"labels": {"a": PADDING}}}


def packed(value):
    return json.dumps(value, separators=(",", ":")).encode()


class TestAPage:
    @pytest.mark.parametrize("indent", [None, 2])
    def test_gives_its_objects_and_where_it_goes_on(self, indent):
        told = {"kind": "PodList", "metadata": {"continue": "more"}, "items": [{"a": 1}, {"b": []}]}
        page = ListPage(json.dumps(told, indent=indent).encode())

        assert list(page.items()) == [{"a": 1}, {"b": []}]
        assert (page.metadata, page.is_list) == ({"continue": "more"}, True)

    def test_may_tell_its_metadata_last(self):
        page = ListPage(b'{"items":[{"a":1}],"metadata":{"continue":"more"}}')

        assert (list(page.items()), page.metadata) == ([{"a": 1}], {"continue": "more"})

    def test_names_an_object_that_is_too_large(self):
        page = ListPage(packed({"items": [{"a": 1}, LARGE, {"b": 2}]}))

        first, large, last = page.items()
        assert (first, last) == ({"a": 1}, {"b": 2})
        assert isinstance(large, Oversized)
        assert large == {"metadata": NAMES}
        assert large.num_bytes == len(packed(LARGE))

    def test_counts_bytes_and_not_characters(self):
        of_two_bytes = {"a": "é" * (MOST_OBJECT_BYTES // 2)}
        text = json.dumps({"items": [of_two_bytes]}, ensure_ascii=False)

        [found] = ListPage(text.encode()).items()
        assert isinstance(found, Oversized)

    @pytest.mark.parametrize("broken", [b"", b"[]", b"{", b'{"items":[1', b"x"])
    def test_that_breaks_off_is_none(self, broken):
        with pytest.raises(ValueError, match=r"truncated|Expected|malformed"):
            list(ListPage(broken).items())

    @pytest.mark.parametrize(("told", "is_list"), [(b"{}", False), (b'{"items":null}', True)])
    def test_without_objects_is_a_list_where_it_says_so(self, told, is_list):
        page = ListPage(told)

        assert (list(page.items()), page.is_list) == ([], is_list)


def events(data, piece_bytes):
    lines = Lines()
    return [
        read_event(line, num_bytes)
        for start in range(0, len(data), piece_bytes)
        for line, num_bytes in lines.take(data[start : start + piece_bytes])
    ]


class TestAWatch:
    @pytest.mark.parametrize("piece_bytes", [1, 7, 1000])
    def test_is_read_line_by_line_however_it_comes(self, piece_bytes):
        told = [{"type": "ADDED", "object": {"a": "é"}}, {"type": "BOOKMARK", "object": {}}]
        data = b"\n".join([*map(packed, told), b""])

        assert events(data, piece_bytes) == [("ADDED", {"a": "é"}), ("BOOKMARK", {})]

    def test_names_an_object_that_is_too_large_and_goes_on(self):
        told = [{"type": "DELETED", "object": LARGE}, {"type": "BOOKMARK", "object": {}}]
        data = b"\n".join([*map(packed, told), b""])

        large, last = events(data, 10_000)
        assert large == ("DELETED", {"metadata": NAMES})
        assert large[1].num_bytes == len(packed(told[0]))
        assert last == ("BOOKMARK", {})

    def test_holds_the_beginning_of_a_long_line_alone(self):
        lines = Lines()
        for _ in range(100):
            assert list(lines.take(b"x" * MOST_OBJECT_BYTES)) == []

        [(line, num_bytes)] = lines.take(b"\n")
        assert (len(line), num_bytes) == (HEAD_BYTES, 100 * MOST_OBJECT_BYTES)
        with pytest.raises(ValueError, match="without a name"):
            read_event(line, num_bytes)

    @pytest.mark.parametrize("line", [b"x", b"[]", b"{}", b'{"type":"ADDED","object":3}'])
    def test_may_say_what_is_no_event(self, line):
        with pytest.raises(ValueError, match=r"Expecting|no "):
            read_event(line, len(line))
