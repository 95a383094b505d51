"""Request traces: every format and alias read, everything wrong named with its place."""

import gzip
import json
import sys
from decimal import Decimal

import pytest

from tonnage.replay.traces import TraceError, notes_of, read_trace, unused_of

ROWS = [(0.5, 100, 10), (1.5, 200, 20), (1.5, 300, 30)]
CSV = "arrival_s,prompt_tokens,output_tokens\n0.5,100,10\n1.5,200,20\n1.5,300,30\n"


def rows(trace):
    return list(zip(trace.arrival_s, trace.prompt_tokens, trace.output_tokens, strict=True))


def a_file(folder, name, text):
    path = folder / name
    path.write_bytes(
        gzip.compress(text.encode(), mtime=0) if name.endswith(".gz") else text.encode()
    )
    return path


def jsonl(names=("arrival_s", "prompt_tokens", "output_tokens"), more=None):
    return "".join(
        json.dumps(dict(zip(names, row, strict=True)) | (more or {})) + "\n" for row in ROWS
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", CSV),
        ("t.csv.gz", CSV),
        ("T.CSV", CSV),
        ("t.csv", "\ufeff" + CSV.replace("\n", "\r\n") + "\r\n"),
        ("t.csv", CSV.replace("arrival_s", " time_s ").replace("prompt_tokens", "input_tokens")),
        ("t.csv", "output_tokens,user,arrival_ms,input_tokens\n10,a,500,100\n20,b,1500,200\n"
                  "30,c,1500,300\n"),
        ("t.csv", "Timestamp,Model,Request tokens,Response tokens,Total tokens\n0.5,x,100,10,110\n"
                  "1.5,x,200,20,220\n1.5,x,300,30,330\n"),
        ("t.jsonl", jsonl(more={"ttft_s": 0.3})),
        ("t.jsonl.gz", jsonl() + "\n"),
        ("t.jsonl", "".join(
            json.dumps({"timestamp": 1000 * at, "input_length": i, "output_length": o,
                        "hash_ids": [1]}) + "\n"
            for at, i, o in ROWS)),
    ],
)  # fmt: skip
def test_every_format_and_alias_gives_the_same_requests(tmp_path, name, text):
    trace = read_trace(a_file(tmp_path, name, text))

    assert rows(trace) == ROWS
    assert not trace.was_unsorted
    assert len(trace) == 3


def test_dates_count_from_the_first(tmp_path):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:17:05.0000000,200,20\n2023-11-16 18:17:03.9799600,100,10\n"
    )

    trace = read_trace(a_file(tmp_path, "azure.csv", text))

    assert trace.arrival_s[0] == 0
    assert trace.arrival_s[1] == pytest.approx(1.02004, abs=1e-5)
    assert list(trace.prompt_tokens) == [100, 200]


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        (
            "2023-11-16T18:17:04+02:00",
            "2023-11-16T18:17:06",
            "has no time zone, rows above have one",
        ),
        ("2023-11-16T18:17:04", "2023-11-16T18:17:06Z", "has a time zone, rows above have none"),
    ],
)
def test_dates_with_and_without_a_time_zone_are_refused(tmp_path, first, second, said):
    text = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},200,20\n{second},100,10\n"

    with pytest.raises(TraceError, match=f"azure.csv:3:TIMESTAMP: '{second}' {said}"):
        read_trace(a_file(tmp_path, "azure.csv", text))


def test_time_zones_may_differ(tmp_path):
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16T18:17:04+02:00,200,20\n2023-11-16T16:17:06Z,100,10\n"
    )

    assert list(read_trace(a_file(tmp_path, "azure.csv", text)).arrival_s) == [0, 2]


def test_unsorted_rows_are_sorted_and_said(tmp_path):
    text = "arrival_s,prompt_tokens,output_tokens\n3,1,1\n1,2,2\n3,3,3\n2,4,4\n"

    trace = read_trace(a_file(tmp_path, "t.csv", text))

    assert rows(trace) == [(1, 2, 2), (2, 4, 4), (3, 1, 1), (3, 3, 3)]
    assert trace.was_unsorted


HEAD = "arrival_s,prompt_tokens,output_tokens\n1,2,3\n"


def test_requests_without_a_token_are_left_out_and_counted(tmp_path):
    # BurstGPT has those that failed with no tokens of an answer.
    path = tmp_path / "t.csv"
    path.write_text(HEAD + "2,5,0\n3,0,4\n4,1,1\n")

    trace = read_trace(path)

    assert rows(trace) == [(1, 2, 3), (4, 1, 1)]
    assert list(notes_of(trace)) == ["2 of 4 requests without a token are skipped"]


def test_a_trace_of_nothing_but_those_has_no_requests(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("arrival_s,prompt_tokens,output_tokens\n1,2,0\n")

    with pytest.raises(TraceError, match="no requests: 1 row is without a token"):
        read_trace(path)


@pytest.mark.parametrize(
    ("text", "line", "column", "message"),
    [
        (HEAD + "-1,2,3\n", 3, "arrival_s", "'-1' is negative"),
        (HEAD + "1,-2,3\n", 3, "prompt_tokens", "'-2' is negative"),
        (HEAD + "nan,2,3\n", 3, "arrival_s", "'nan' is not finite"),
        (HEAD + "1,2,inf\n", 3, "output_tokens", "'inf' is not finite"),
        (HEAD + "1,2.5,1\n", 3, "prompt_tokens", "'2.5' is no number of tokens"),
        (HEAD + "1,1e300,1\n", 3, "prompt_tokens", "'1e300' is no number of tokens"),
        (HEAD + "1,many,1\n", 3, "prompt_tokens", "'many' is no number"),
        (HEAD + "1,1_0,1\n", 3, "prompt_tokens", "'1_0' is no number"),
        (HEAD + "1,,1\n", 3, "prompt_tokens", "no value"),
        (HEAD + "1,2\n", 3, "output_tokens", "no value"),
        (HEAD + "1,2,3,4\n", 3, None, "4 fields, the header has 3"),
        (HEAD + '1,"2,3\n', 3, None, "unexpected end of data"),
        ("arrival_s,tokens\n1,2\n", 1, "prompt_tokens", "the columns are: arrival_s, tokens"),
        ("a,time_s,arrival_ms\n", 1, "arrival_ms", "given twice, as time_s and arrival_ms"),
        ("", None, None, "it has no requests"),
        ("arrival_s,prompt_tokens,output_tokens\n", None, None, "it has no requests"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path, text, line, column, message):
    path = a_file(tmp_path, "t.csv", text)

    with pytest.raises(TraceError) as caught:
        read_trace(path)

    assert (caught.value.path, caught.value.line, caught.value.column) == (path, line, column)
    assert message in str(caught.value)
    assert str(caught.value).startswith(f"{path}:")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"arrival_s": NaN, "prompt_tokens": 1, "output_tokens": 1}', "nan is not finite"),
        ('{"arrival_s": 1, "prompt_tokens": true, "output_tokens": 1}', "True is no number"),
        ('{"arrival_s": 1, "output_tokens": 1}', "prompt_tokens: no value"),
        ('{"arrival_s": 1, ', "no JSON"),
        ("[1, 2, 3]", "no JSON object"),
        ("[" * 100_000, "no JSON"),
    ],
)
def test_a_wrong_line_of_jsonl_is_named(tmp_path, line, message):
    with pytest.raises(TraceError) as caught:
        read_trace(a_file(tmp_path, "t.jsonl", jsonl() + line + "\n"))

    assert caught.value.line == 4
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("t.csv", b"arrival_s\xff", "no text in UTF-8"),
        ("t.csv.gz", b"arrival_s", "Not a gzipped file"),
        ("t.csv.gz", gzip.compress(CSV.encode(), mtime=0)[:-12], "damaged"),
        ("t.txt", CSV.encode(), "a trace ends in .csv"),
    ],
)
def test_a_file_that_is_something_else_is_refused(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)

    with pytest.raises(TraceError, match=message):
        read_trace(tmp_path / name)


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "t.csv")


def test_parquet_without_pyarrow_names_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)

    with pytest.raises(TraceError, match="pip install pyarrow"):
        read_trace(a_file(tmp_path, "t.parquet", "PAR1"))


def test_parquet_has_dates_in_nanoseconds_and_decimals(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    columns = {
        "TIMESTAMP": pyarrow.array([10**18, 10**18 + 15 * 10**8 + 1], pyarrow.timestamp("ns")),
        "ContextTokens": pyarrow.array([Decimal(100), Decimal(200)]),
        "GeneratedTokens": [10, 20],
    }
    parquet.write_table(pyarrow.table(columns), path)

    found = read_trace(path)

    assert list(found.arrival_s) == [0, 1.5]
    assert list(found.prompt_tokens) == [100, 200]


# Columns and first rows as published, with the seconds between them: alibaba-edu's
# qwen-bailian-usagetraces-anon (README: seconds), kvcache-ai/Mooncake (milliseconds), release v2.0
# of HPMLL/BurstGPT, and AzurePublicDataset, the trace of 2024 and the multimodal one.
BAILIAN = (
    '{"chat_id": 159, "parent_chat_id": 55, "timestamp": 61.114, "input_length": 521, '
    '"output_length": 132, "type": "text", "turn": 2, "hash_ids": [1089, 1090]}\n'
    '{"chat_id": 160, "parent_chat_id": -1, "timestamp": 62.5, "input_length": 676, '
    '"output_length": 80, "type": "text", "turn": 1, "hash_ids": [6326]}\n'
)
MOONCAKE = (
    '{"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47]}\n'
    '{"timestamp": 30535, "input_length": 6472, "output_length": 26, "hash_ids": [46, 49]}\n'
)
BURSTGPT = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "19440110.0,1722ac82,43,GPT-4,906,446,1352,Conversation log\n"
    "19440161.0,d5983bf9,2,ChatGPT,36,29,65,Conversation log\n"
)
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2024-05-10 00:00:00.009930+00:00,2162,5\n"
AZURE += "2024-05-10 00:00:00.017335+00:00,2399,6\n"
AZURE_IMAGES = "TIMESTAMP,NumImages,ContextTokens,GeneratedTokens\n"
AZURE_IMAGES += "2024-10-15 00:00:00.5+00:00,2,900,120\n2024-10-15 00:00:02+00:00,0,90,12\n"


@pytest.mark.parametrize(
    ("file", "apart_s", "clock", "unused"),
    [
        (("b.jsonl", BAILIAN), 1.386, "timestamp in s, as Qwen-Bailian has it",
         ("chat_id", "parent_chat_id", "type", "turn", "hash_ids")),
        (("m.jsonl", MOONCAKE), 3.053, "timestamp in ms, as Mooncake has it", ("hash_ids",)),
        (("b.csv", BURSTGPT), 51, "Timestamp in s, as BurstGPT has it",
         ("Session ID", "Elapsed time", "Model", "Total tokens", "Log Type")),
        (("a.csv", AZURE), 0.007405, "TIMESTAMP as dates", ()),
        (("i.csv", AZURE_IMAGES), 1.5, "TIMESTAMP as dates", ("NumImages",)),
        (("t.csv", CSV), 1, "arrival_s in s", ()),
    ],
)  # fmt: skip
def test_a_published_format_says_the_unit_and_what_is_not_used(
    tmp_path, file, apart_s, clock, unused
):
    trace = read_trace(a_file(tmp_path, *file))

    assert trace.arrival_s[1] - trace.arrival_s[0] == pytest.approx(apart_s, abs=1e-6)
    assert (trace.clock, trace.unused) == (clock, unused)


def test_a_parquet_of_a_published_format_is_known_by_columns_that_are_not_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    path = tmp_path / "t.parquet"
    parquet.write_table(
        pyarrow.Table.from_pylist(list(map(json.loads, BAILIAN.splitlines()))), path
    )

    trace = read_trace(path)

    assert trace.arrival_s[1] - trace.arrival_s[0] == pytest.approx(1.386)
    assert "hash_ids" in trace.unused


BARE = "timestamp,input_length,output_length\n1000,10,1\n3000,10,1\n"
"""What GuideLLM reads as seconds and AIPerf as milliseconds."""


def test_times_without_a_unit_are_asked_for_and_never_guessed(tmp_path):
    path = a_file(tmp_path, "t.csv", BARE)

    with pytest.raises(
        TraceError, match=r"2:timestamp: numbers without a unit.*--time-unit \(s, ms"
    ):
        read_trace(path)

    found = {unit: read_trace(path, unit=unit).arrival_s[1] for unit in ("s", "ms", "us", "ns")}
    assert found == {"s": 3000, "ms": 3, "us": pytest.approx(3e-3), "ns": pytest.approx(3e-6)}
    assert read_trace(path, unit="ms").clock == "timestamp in ms, as given"


def test_a_given_unit_is_believed_over_that_of_a_format(tmp_path):
    trace = read_trace(a_file(tmp_path, "m.jsonl", MOONCAKE), unit="s")

    assert trace.arrival_s[1] - trace.arrival_s[0] == 3053


def test_dates_in_any_column_need_no_unit(tmp_path):
    text = BARE.replace("1000", "2026-01-01T00:00:01").replace("3000", "2026-01-01T00:00:03")

    assert list(read_trace(a_file(tmp_path, "t.csv", text)).arrival_s) == [0, 2]


def test_turns_with_a_delay_in_place_of_a_time_are_refused_with_what_to_give(tmp_path):
    # ai-dynamo/aiperf, loader of Mooncake traces: a later turn has the delay after the answer.
    text = (
        '{"session_id": "a", "timestamp": 0, "input_length": 300, "output_length": 40, '
        '"hash_ids": [1]}\n'
        '{"session_id": "a", "delay": 5000, "input_length": 150, "output_length": 20, '
        '"hash_ids": [1, 2]}\n'
    )

    with pytest.raises(TraceError, match=r":2:timestamp: no time, but a delay after the answer"):
        read_trace(a_file(tmp_path, "t.jsonl", text))


def test_what_is_not_used_is_named_with_what_that_means(tmp_path):
    text = AZURE_IMAGES.replace("\n", ",x\x1b[31m\n", 1)
    rows = text.replace("120", "120,1").replace(",90,12", ",90,12,1")

    found = unused_of(read_trace(a_file(tmp_path, "i.csv", rows)))

    assert found.startswith("NumImages (time and tokens of images are not counted")
    assert found.endswith(r"'x\x1b[31m'")


def test_the_names_of_columns_are_bounded_however_many_there_are(tmp_path):
    row = {"arrival_s": 1, "prompt_tokens": 1, "output_tokens": 1}
    text = "".join(json.dumps(row | {f"c{n}-{m}": 0 for m in range(30)}) + "\n" for n in range(99))

    trace = read_trace(a_file(tmp_path, "t.jsonl", text))

    assert len(trace.unused) == 40
    assert unused_of(trace).endswith(", ...")


@pytest.mark.parametrize("first", [1_700_000_000, 1_700_000_000_000_000, 1_753_780_607_550_317_897])
def test_times_since_1970_in_another_unit_than_the_formats_are_refused(tmp_path, first):
    # LMBench's trace replayer takes Mooncake's columns with nanoseconds.
    rows = f"timestamp,input_length,output_length,hash_ids\n{first},1,1,1\n"

    with pytest.raises(TraceError, match=r"t\.csv:timestamp: times since 1970, and not in ms, as"):
        read_trace(a_file(tmp_path, "t.csv", rows))


def test_milliseconds_since_1970_are_milliseconds(tmp_path):
    rows = "timestamp,input_length,output_length,hash_ids\n1700000000000,1,1,1\n"
    rows += "1700000002000,1,1,1\n"

    first_s, second_s = read_trace(a_file(tmp_path, "t.csv", rows)).arrival_s

    assert second_s - first_s == 2


def test_a_column_that_is_there_twice_is_refused(tmp_path):
    rows = "arrival_s,arrival_s,prompt_tokens,output_tokens\n1,2,3,4\n"

    with pytest.raises(TraceError, match="given twice, as arrival_s and arrival_s"):
        read_trace(a_file(tmp_path, "t.csv", rows))


def test_parquet_is_read_by_column(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    at, prompt, output = zip(*ROWS, strict=True)
    columns = {"arrival_ms": [1000 * each for each in at], "input_tokens": prompt}
    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table(columns | {"output_tokens": output}), path)

    assert rows(read_trace(path)) == ROWS

    parquet.write_table(pyarrow.table(columns), path)
    with pytest.raises(TraceError, match="the columns are: arrival_ms, input_tokens"):
        read_trace(path)
    parquet.write_table(pyarrow.table(columns | {"output_tokens": [1, 0, 1]}), path)
    assert (len(read_trace(path)), read_trace(path).num_empty) == (2, 1)
    path.write_bytes(b"PAR1 and nothing else")
    with pytest.raises(TraceError, match="no parquet"):
        read_trace(path)
