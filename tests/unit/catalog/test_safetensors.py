"""The headers of safetensors files: what they say, and what is refused."""

import json
import re
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoint_builders import ELEMENT_BYTES, a_checkpoint, a_file, a_header, framed
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.safetensors import (
    CheckpointError,
    Index,
    Tensor,
    files_without_index,
    header_end,
    join_files,
    read_header,
    read_index,
)

# The file with which the format's own reader is tested, byte for byte: 64 bytes of header, and
# six float32 numbers.
REFERENCE = (
    b'@\0\0\0\0\0\0\0{"attn.0":{"dtype":"F32","shape":[1,2,3],"data_offsets":[0,24]}}' + bytes(24)
)
FOUR = {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}


def four(**changes):
    return {"a": FOUR | changes}


def test_the_reference_file_has_one_tensor_of_24_bytes():
    tensors = read_header(REFERENCE, file="x", file_bytes=96)

    assert tensors == (Tensor("attn.0", "F32", (1, 2, 3), 24),)


@pytest.mark.parametrize(
    ("dtypes", "expected_bytes"),
    [
        ("F64 I64 U64 C64", 64),
        ("F32 I32 U32", 32),
        ("F16 BF16 I16 U16", 16),
        ("F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I8 U8 BOOL", 8),
        ("F6_E2M3 F6_E3M2", 6),
        ("F4", 4),
    ],
)
def test_eight_elements_of_a_type_take_so_many_bytes(dtypes, expected_bytes):
    for dtype in dtypes.split():
        entry = {"dtype": dtype, "shape": [2, 4], "data_offsets": [0, expected_bytes]}
        content = framed({"a": entry}, data_bytes=expected_bytes)

        assert read_header(content, file="x")[0].num_bytes == expected_bytes


def test_scalars_empty_tensors_text_metadata_and_padding_are_fine():
    header = {
        "__metadata__": {"format": "pt"},
        "empty": {"dtype": "F32", "shape": [0, 7], "data_offsets": [0, 0]},
        "scalar": {"dtype": "F32", "shape": [], "data_offsets": [0, 4], "more": 1},
    }
    content = framed(json.dumps(header).encode() + b"   ", data_bytes=4)

    assert [each.num_bytes for each in read_header(content, file="x")] == [0, 4]


def test_a_header_is_read_without_the_tensors_behind_it():
    content = a_file({"a": ("BF16", (1000, 1000))})
    end = header_end(content[:8], file="x")

    (tensor,) = read_header(content[:end], file="x", file_bytes=len(content))

    assert tensor.num_bytes == 2_000_000
    assert len(content) - end == 2_000_000


TEXT = b'{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}}'
FAULTS = [
    (b"", "cut off: 0 bytes"),
    (b"\x08\0\0", "cut off: 3 bytes"),
    (framed(TEXT)[:20], "cut off: the header ends at byte 61, the file at 20"),
    (struct.pack("<Q", 100_000_001) + b"{}", "100000001 bytes; at most 100000000 are read"),
    (b"\xff" * 16, "18446744073709551615 bytes"),
    (b"version https://git-lfs.github.com/spec/v1\n", "a Git LFS pointer"),
    (framed(b'{"\xff": 1}'), "not UTF-8 text at byte 2"),
    (framed(b"{"), "not JSON"),
    (framed(b""), "not JSON"),
    (framed(b"\xef\xbb\xbf{}"), "not JSON"),
    (framed(b"[" * 100_000), "not JSON"),
    (framed(b'{"a": NaN}'), "NaN is not a number that JSON has"),
    (framed(b'{"a": 1' + b"0" * 5000 + b"}"), "not JSON"),
    (framed([]), "the JSON is no object"),
    (framed(b'{"a": {}, "a": {}}'), "key 'a' is given twice"),
    (framed({"a": 1}), "tensor 'a': Expected `object`, got `int`"),
    (framed(four(dtype="float32")), "tensor 'a': dtype = 'float32' is none of BOOL, F4"),
    (framed(four(dtype=None)), "Expected `str`, got `null` - at `$.dtype`"),
    (framed(four(dtype=["U8"])), "Expected `str`, got `array` - at `$.dtype`"),
    (framed(four(shape=[-4])), "Expected `int` >= 0 - at `$.shape[0]`"),
    (framed(four(shape=[4.0])), "got `float` - at `$.shape[0]`"),
    (framed(four(shape=[True])), "got `bool` - at `$.shape[0]`"),
    (framed(four(shape="4")), "got `str` - at `$.shape`"),
    (framed(four(shape=[10**30])), "Expected `int` <= 9223372036854775807 - at `$.shape[0]`"),
    (framed(four(shape=[1] * 65)), "length <= 64 - at `$.shape`"),
    (framed(four(shape=[2**62] * 64)), "bits, data_offsets give it 4 bytes"),
    (framed(four(data_offsets=[0])), "length 2, got 1 - at `$.data_offsets`"),
    (framed(four(data_offsets=[0, "4"])), "got `str` - at `$.data_offsets[1]`"),
    (framed(four(data_offsets=None)), "got `null` - at `$.data_offsets`"),
    (framed(four(data_offsets=[-4, 0])), "Expected `int` >= 0 - at `$.data_offsets[0]`"),
    (framed(four(data_offsets=[4, 0])), "takes 32 bits, data_offsets give it -4 bytes"),
    (framed(four(data_offsets=[0, 5])), "U8 of shape [4] takes 32 bits, data_offsets give it 5"),
    (framed(four(dtype="F4", shape=[3])), "F4 of shape [3] takes 12 bits"),
]


@pytest.mark.parametrize(("content", "expected"), FAULTS, ids=[each[1][:40] for each in FAULTS])
def test_a_damaged_file_is_named_with_what_is_wrong(content, expected):
    with pytest.raises(CatalogError, match=re.escape(expected)) as caught:
        read_header(content, file="model.safetensors")

    assert str(caught.value).startswith("model.safetensors: ")
    assert len(str(caught.value)) < 1500


@pytest.mark.parametrize(
    ("file_bytes", "expected"),
    [(64, "cut off: header and tensors take 65 bytes"), (66, "not all of it is tensors")],
)
def test_a_file_that_is_shorter_or_longer_than_its_tensors_is_refused(file_bytes, expected):
    with pytest.raises(CheckpointError, match=expected):
        read_header(framed(TEXT), file="x", file_bytes=file_bytes)


names = st.text(st.characters(codec="utf-8"), max_size=20).filter(lambda name: name[:2] != "__")
shapes = st.lists(st.integers(0, 5), max_size=4)


@given(st.dictionaries(names, st.tuples(st.sampled_from(sorted(ELEMENT_BYTES)), shapes)))
def test_what_is_written_is_what_is_read(tensors):
    content = a_file(tensors, metadata={"format": "pt"})

    found = join_files({"x": read_header(content, file="x", file_bytes=len(content))})

    assert sorted(found.tensors, key=repr) == sorted(a_checkpoint(tensors).tensors, key=repr)
    assert found.total_bytes == len(content) - header_end(content, file="x")


@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 255))
def test_no_bytes_do_more_than_be_refused(noise, at, byte):
    spoilt = bytearray(REFERENCE[8:72])
    spoilt[at] = byte
    for content in (noise, framed(noise), framed(bytes(spoilt))):
        try:
            read_header(content, file="x")
        except CheckpointError as error:
            assert str(error).startswith("x: ")  # noqa: PT017  (most, but not all, are refused)


def an_index(**changes):
    index = {"metadata": {"total_size": 8}, "weight_map": {"a": "m1.safetensors"}} | changes
    return json.dumps(index).encode()


def test_an_index_gives_files_tensors_and_their_bytes():
    content = an_index(weight_map={"a": "m2.safetensors", "b": "m1.safetensors"})

    index = read_index(content, file="i")

    assert index.files == ("m1.safetensors", "m2.safetensors")
    assert index.total_bytes == 8


@pytest.mark.parametrize(("total", "expected"), [(8.0, 8), (0.5, None), ("8", None), (None, None)])
def test_a_total_that_is_no_number_of_bytes_is_not_compared(total, expected):
    content = an_index(metadata={"total_size": total})

    assert read_index(content, file="i").total_bytes == expected


@pytest.mark.parametrize(
    "name",
    [
        "../../etc/passwd",
        "../m1.safetensors",
        "/m1.safetensors",
        "sub/m1.safetensors",
        "..\\m1.safetensors",
        ".safetensors",
        "m1.bin",
        "m1.safetensors\n",
        "m1\0.safetensors",
        "https://example.com/m1.safetensors",
        "",
        1,
        None,
        ["m1.safetensors"],
    ],
)
def test_an_index_names_files_of_its_own_folder_only(name):
    with pytest.raises(CheckpointError, match=r"i: weight_map: tensor 'a' is in .* no name of"):
        read_index(an_index(weight_map={"a": name}), file="i")


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"[]", "i: the JSON is no object"),
        (b"{}", "i: weight_map is missing or empty"),
        (b'{"weight_map": {}}', "i: weight_map is missing or empty"),
        (b'{"weight_map": {"a": "m.safetensors", "a": "m.safetensors"}}', "is given twice"),
    ],
)
def test_what_is_no_index_is_refused(content, expected):
    with pytest.raises(CheckpointError, match=re.escape(expected)):
        read_index(content, file="i")


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ("model.safetensors config.json x.bin", "model.safetensors"),
        ("m-1-of-2.safetensors m-2-of-2.safetensors", "m-1-of-2.safetensors m-2-of-2.safetensors"),
        ("consolidated.safetensors model.safetensors", "model.safetensors"),
        ("consolidated.safetensors", "consolidated.safetensors"),
    ],
)
def test_a_folder_without_an_index_is_one_checkpoint(present, expected):
    assert files_without_index(present.split()) == tuple(expected.split())


@pytest.mark.parametrize(
    ("present", "expected"),
    [
        ("", "no safetensors file, and no model.safetensors.index.json"),
        ("model.gguf", "no safetensors file"),
        ("m-00001-of-00003.safetensors m-00003-of-00003.safetensors", "2 of 3 files m-"),
    ],
)
def test_a_folder_that_lacks_files_is_refused(present, expected):
    with pytest.raises(CheckpointError, match=re.escape(expected)):
        files_without_index(present.split())


A_FILE = read_header(framed(TEXT), file="x")


def test_a_tensor_in_two_files_is_refused():
    with pytest.raises(CheckpointError, match="two: tensor 'a' is in one already"):
        join_files({"one": A_FILE, "two": A_FILE})


@pytest.mark.parametrize("file_of", [{"a": "two"}, {"a": "one", "b": "one"}])
def test_a_tensor_that_is_not_where_the_index_says_is_refused(file_of):
    with pytest.raises(CheckpointError, match="is not there, as the index says"):
        join_files({"one": A_FILE, "two": ()}, index=Index(file_of=file_of))


def test_an_index_that_claims_other_bytes_is_noted():
    claims_five = join_files({"one": A_FILE}, index=Index(file_of={"a": "one"}, total_bytes=5))
    claims_four = join_files({"one": A_FILE}, index=Index(file_of={"a": "one"}, total_bytes=4))

    assert claims_five.notes == ("the index claims 5 bytes, the headers have 4",)
    assert claims_four.notes == ()


def test_the_builder_of_these_tests_writes_offsets_without_gaps():
    header = a_header({"a": ("F32", (2,)), "b": ("U8", (3,))})

    assert [each["data_offsets"] for each in header.values()] == [[0, 8], [8, 11]]
