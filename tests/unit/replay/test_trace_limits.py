"""How much of a trace is read: what is refused, and how little of it was unpacked by then."""

import gzip
from decimal import Decimal

import pytest

from tonnage.replay.trace_rows import PIECE_BYTES, TraceError, TraceLimits
from tonnage.replay.traces import read_trace
from tonnage.units import KIB, MIB

HEAD = "arrival_s,prompt_tokens,output_tokens\n"
ROW = "1,20,3\n"
JSON_ROW = '{"arrival_s": 1, "prompt_tokens": 20, "output_tokens": 3}\n'


def a_file(folder, name, *texts):
    """Write these texts; into a packed file each of them as a member of its own."""
    pack = gzip.compress if name.endswith(".gz") else bytes
    path = folder / name
    path.write_bytes(b"".join(pack(text.encode()) for text in texts))
    return path


def refusal(path, **limits):
    with pytest.raises(TraceError) as caught:
        read_trace(path, limits=TraceLimits(**limits))
    return caught.value


@pytest.mark.parametrize(
    ("name", "within", "more"),
    [
        ("t.csv", [HEAD, 3 * ROW], ROW),
        ("t.csv.gz", [HEAD, 3 * ROW], ROW),
        ("t.csv.gz", [HEAD, ROW, ROW, ROW], ROW),
        ("t.jsonl.gz", [3 * JSON_ROW, "\n"], JSON_ROW),
        ("t.csv.gz", [HEAD, ROW, "1,0,0\n", ROW], "1,0,0\n"),
        ("t.csv.gz", [HEAD, ROW, "\n\n"], "\n"),
    ],
)
def test_lines_are_bounded_whatever_is_in_them(tmp_path, name, within, more):
    assert len(read_trace(a_file(tmp_path, name, *within), limits=TraceLimits(max_rows=3))) > 0

    said = refusal(a_file(tmp_path, name, *within, more), max_rows=3)

    assert str(said).endswith(f"{name}: more than 3 lines")


def test_bytes_are_bounded_after_unpacking(tmp_path):
    path = a_file(tmp_path, "t.csv.gz", HEAD, ROW)
    size_bytes = len(HEAD + ROW)

    assert len(read_trace(path, limits=TraceLimits(max_bytes=size_bytes))) == 1
    said = refusal(path, max_bytes=size_bytes - 1)

    assert "more than 44 B unpacked" in str(said)


def test_no_more_is_unpacked_than_the_limit_and_a_piece(tmp_path):
    path = a_file(tmp_path, "t.csv.gz", HEAD, *64 * [(ROW + "\n" * 57) * (MIB // 64)])
    told = []

    with pytest.raises(TraceError, match="more than 3\\.0 MiB unpacked"):
        read_trace(
            path,
            limits=TraceLimits(max_bytes=3 * MIB, max_rows=64 * MIB),
            tell=lambda number, noun: told.append((number, noun)),
        )

    assert len(told) == 3  # pieces of 1 MiB, of 64
    assert {noun for _, noun in told} == {"line"}


@pytest.mark.parametrize(("name", "row"), [("t.csv.gz", ROW), ("t.jsonl.gz", JSON_ROW)])
def test_a_line_is_refused_before_all_of_it_is_unpacked(tmp_path, name, row):
    head = HEAD if row is ROW else ""
    path = a_file(tmp_path, name, head, row, *64 * ["1" * MIB])
    told = []

    with pytest.raises(TraceError, match="longer than 1\\.0 MiB: leave out columns") as caught:
        read_trace(path, tell=lambda number, _: told.append(number))

    assert caught.value.line == (head + row).count("\n") + 1
    assert len(told) == 1  # the first piece ends within the line


@pytest.mark.parametrize("begins_at", [0, 1, PIECE_BYTES - 1])
def test_the_longest_line_is_read_wherever_it_begins(tmp_path, begins_at):
    blanks = "\n" * begins_at
    row = JSON_ROW.strip().ljust(PIECE_BYTES)

    assert len(read_trace(a_file(tmp_path, "t.jsonl", f"{blanks}{row}\n{JSON_ROW}"))) == 2
    said = refusal(a_file(tmp_path, "t.jsonl", f"{blanks}{row} \n{JSON_ROW}"))

    assert said.line == begins_at + 1


@pytest.mark.parametrize("size", [2 * MIB, 2 * MIB + 1])
def test_a_longer_line_is_read_where_the_limit_is_raised(tmp_path, size):
    path = a_file(tmp_path, "t.jsonl", JSON_ROW.strip().ljust(size) + "\n")
    limits = TraceLimits(max_line_bytes=2 * MIB)

    if size == 2 * MIB:
        assert len(read_trace(path, limits=limits)) == 1
    else:
        assert "longer than 2.0 MiB" in str(refusal(path, max_line_bytes=2 * MIB))


def test_a_record_over_many_lines_is_bounded_as_a_line_is(tmp_path):
    field = '"' + 64 * KIB * "\n" + '",'
    path = a_file(tmp_path, "t.csv.gz", HEAD + ROW, *17 * [field])

    said = refusal(path)

    assert said.line == 3
    assert "longer than 1.0 MiB" in str(said)


def test_records_over_many_lines_may_be_longer_together(tmp_path):
    row = '1,20,3,"' + 64 * KIB * "\n" + '"\n'
    path = a_file(tmp_path, "t.csv.gz", HEAD.replace("\n", ",text\n"), *17 * [row])

    assert len(read_trace(path)) == 17


def test_a_value_that_no_number_has_is_refused_by_its_length(tmp_path):
    said = refusal(a_file(tmp_path, "t.csv", HEAD, f"1,{'0' * 64}2,3\n"))

    assert str(said).endswith("t.csv:2:prompt_tokens: a value of 65 characters, more than 64")


@pytest.mark.parametrize("header", ["a," * 100_000, "arrival_s," * 100_000])
def test_a_header_of_many_columns_is_refused_in_few_words(tmp_path, header):
    assert len(str(refusal(a_file(tmp_path, "t.csv", header + "\n")))) < 500 + len(str(tmp_path))


class TestParquet:
    def a_table(self, folder, *, write=None, **columns):
        pyarrow = pytest.importorskip("pyarrow")
        parquet = pytest.importorskip("pyarrow.parquet")
        path = folder / "t.parquet"
        figures = {"arrival_s": [1.0, 2.0, 3.0], "prompt_tokens": [1] * 3, "output_tokens": [1] * 3}
        parquet.write_table(pyarrow.table(figures | columns), path, **(write or {}))
        return path

    def test_rows_are_bounded_by_the_footer(self, tmp_path):
        path = self.a_table(tmp_path, write={"row_group_size": 1})

        assert len(read_trace(path, limits=TraceLimits(max_rows=3))) == 3
        said = str(refusal(path, max_rows=2))

        assert said.endswith("3 rows, more than 2")

    def test_bytes_are_bounded_in_the_columns_that_are_read(self, tmp_path):
        path = self.a_table(tmp_path, text=["x" * MIB] * 3)

        assert len(read_trace(path, limits=TraceLimits(max_bytes=KIB))) == 3
        assert "more than 16 B unpacked" in str(refusal(path, max_bytes=16))

    def test_a_row_group_that_is_unpacked_at_once_is_bounded(self, tmp_path):
        path = self.a_table(tmp_path, arrival_s=["1" * 33 * MIB, "2", "3"])

        assert "in a row group, more than 32.0 MiB: write smaller row groups" in str(refusal(path))

    def test_a_long_text_that_the_file_has_once_is_read_once(self, tmp_path):
        pyarrow = pytest.importorskip("pyarrow")
        num_rows = 100_000
        texts = pyarrow.DictionaryArray.from_arrays([0] * num_rows, ["1" * MIB])
        tokens = [1] * num_rows
        path = self.a_table(
            tmp_path, arrival_s=texts, prompt_tokens=tokens, output_tokens=tokens,
            write={"dictionary_pagesize_limit": 2 * MIB, "write_statistics": False},
        )  # fmt: skip
        before_bytes = pyarrow.default_memory_pool().max_memory()

        said = refusal(path)

        assert said.line == 1
        assert "a value of 1,048,576 characters, more than 64" in str(said)
        assert pyarrow.default_memory_pool().max_memory() < before_bytes + 16 * MIB

    def test_lists_are_no_figures(self, tmp_path):
        path = self.a_table(tmp_path, arrival_s=[[1.0], [2.0], [3.0]])

        assert "arrival_s: has no number or date in a row" in str(refusal(path))

    def test_text_and_decimals_are_read_as_in_a_csv(self, tmp_path):
        figures = {"arrival_s": ["1", "2", "2.5"], "prompt_tokens": [Decimal(4)] * 3}

        found = read_trace(self.a_table(tmp_path, **figures))

        assert list(found.arrival_s) == [1, 2, 2.5]
        assert list(found.prompt_tokens) == [4, 4, 4]
