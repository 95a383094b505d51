"""Files from strangers: what is refused, with which words, and how fast."""

import subprocess
import sys
import time

import pytest

from tonnage.cli.console import ManifestError
from tonnage.cli.read.references import check_json
from tonnage.cli.read.strict_yaml import MAX_DEPTH, MAX_FIELDS, read_documents
from tonnage.units import MIB

ABUSE = {
    "alias bomb": (
        "a0: &a0 [x, x]\n" + "".join(f"a{k}: &a{k} [*a{k - 1}, *a{k - 1}]\n" for k in range(1, 40)),
        f"more than {MAX_FIELDS} fields",
    ),
    "alias": ("a: 1\nb: *x\n", "f:2: b: alias *x comes before its anchor"),
    "alias within itself": ("a: &a [*a]\n", "f:1: a.0: alias *a comes before"),
    "flow nesting": ("[" * 5000, "f:1: 0.0.0.0: nested more than 50 deep"),
    "a megabyte of nesting": ("[" * MIB, "nested more than 50 deep"),
    "block nesting": ("".join(" " * depth + "a:\n" for depth in range(1400)), "f:52: a.a.a.a: "),
    "duplicate key": ("a:\n  b: 1\n  c: 2\n  b: 3\n", "f:4: a.b: is given twice, first in line 2"),
    "tab": ("a:\n\tb: 1\n", "f:2: a tab in the indentation"),
    "byte order mark within": ("a: 1\n\ufeffb: 1\n", "f:2: a byte order mark"),
    "python object": ("a: !!python/object/apply:os.system [id]\n", "f:1: a: tag"),
    "own tag": ("a: !secret x\n", "f:1: a: tag !secret"),
    "merge of text": ("a:\n  <<: b\n", "f:2: a: << takes a mapping, or a list of mappings"),
    "merge of a list of texts": ("a:\n  <<: [b]\n", "f:2: a: << takes a mapping, or a list"),
    "two merges": (
        "a:\n  <<: {b: 1}\n  <<: {c: 1}\n",
        "f:3: a.<<: is given twice, first in line 2",
    ),
    "merges of merges": (
        "x0: &x0 {a: 1, b: 2}\n"
        + "".join(
            f"x{n}: &x{n}\n  l: [*x{n - 1}, *x{n - 1}]\n  <<: *x{n - 1}\n" for n in range(1, 40)
        ),
        f"more than {MAX_FIELDS} fields",
    ),
    "key that is a list": ("? [a]\n: 1\n", "f:1: a key must be text"),
    "nul": ("a: \0\n", "control characters are not allowed"),
    "escape": ("a: \x1b[31m\n", "control characters are not allowed"),
    "open quote": ('a: "x\nb: 1\n', "f:3: while scanning a quoted scalar"),
    "two values": ("a: b: c\n", "f:1: mapping values are not allowed"),
    "many fields": ("- 1\n" * (MAX_FIELDS + 1), f"more than {MAX_FIELDS} fields"),
}


@pytest.mark.parametrize("name", ABUSE)
def test_abuse_is_refused_in_one_line_and_at_once(name):
    text, expected = ABUSE[name]
    began_s = time.perf_counter()

    with pytest.raises(ManifestError) as refused:
        read_documents(text, source="f")
    elapsed_s = time.perf_counter() - began_s

    assert expected in str(refused.value)
    assert "\n" not in str(refused.value)
    assert elapsed_s < 10  # what grows without bound takes minutes


def test_abuse_takes_little_memory(tmp_path):
    files = []
    for number, (text, _) in enumerate(ABUSE.values()):
        path = tmp_path / f"{number}.yaml"
        path.write_text(text)
        files += ["-f", str(path)]
    script = (
        "import pathlib, re, sys\n"
        "from tonnage.cli.commands.app import program\n"
        "try:\n    program(sys.argv[1:])\n"
        "except SystemExit as end:\n    print(end.code)\n"
        # not getrusage: its peak counts that of the process this one was forked from
        "status = pathlib.Path('/proc/self/status').read_text()\n"
        "print(re.search(r'VmHWM:\\s+(\\d+)', status)[1])\n"
    )
    command = [sys.executable, "-c", script, "plan", *files]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)  # noqa: S603
    code, peak_kib = done.stdout.split()

    assert code == "3"
    assert done.stderr.count("\n") == len(ABUSE)
    assert int(peak_kib) < 200 * 1024


def test_an_alias_is_what_it_stands_for():
    [document] = read_documents("a: &a {b: [1, 2]}\nc: *a\n", source="f")

    assert document.content == {"a": {"b": [1, 2]}, "c": {"b": [1, 2]}}


def test_a_merge_key_brings_the_fields_that_do_not_stand_there():
    [document] = read_documents(
        "base: &a {b: 1, c: 2}\nmore: &m {c: 3, d: 4}\n"
        "one: {<<: *a, c: 5}\nboth:\n  c: 6\n  <<: [*m, *a]\nquoted: {'<<': 7}\n",
        source="f",
    )

    assert document.content["one"] == {"b": 1, "c": 5}
    assert document.content["both"] == {"b": 1, "c": 6, "d": 4}
    assert document.content["quoted"] == {"<<": 7}
    assert (document.lines["both.c"], document.lines["both.d"]) == (5, 6)


def test_a_byte_order_mark_before_the_text_is_skipped():
    [document] = read_documents("\ufeffa: 1\n", source="f")

    assert document.content == {"a": 1}


def test_what_yaml_readers_agree_on_is_read():
    text = "a: 1\nb: [x, 'on', 0.5]\nc: {d: true, e: null}\nf: 2026-01-01\ng: |\n  012\nh: -3\n"
    [document] = read_documents(text, source="f")

    assert document.content == {
        "a": 1,
        "b": ["x", "on", 0.5],
        "c": {"d": True, "e": None},
        "f": "2026-01-01",
        "g": "012\n",
        "h": -3,
    }
    assert document.doubts == ()
    assert document.lines["c.e"] == 3


@pytest.mark.parametrize(
    "text",
    [
        "on",
        "No",
        "y",
        "012",
        "1_000",
        "12:30:45",
        "1e3",
        "8.0e+3",
        "0x10",
        ".nan",
        "-.inf",
        "9" * 99,
    ],
)
def test_what_yaml_readers_disagree_on_is_a_doubt(text):
    [document] = read_documents(f"a:\n  b: {text}\n", source="f")
    [doubt] = document.doubts

    assert (doubt.path, doubt.line, doubt.text) == ("a.b", 2, text)
    assert document.content == {"a": {"b": text}}


def test_several_documents_know_their_lines():
    documents = read_documents("a: 1\n---\nb: 2\n---\n# nothing\n", source="f")

    assert [(each.content, each.line) for each in documents[:2]] == [({"a": 1}, 1), ({"b": 2}, 3)]
    assert documents[2].content is None


def test_depth_is_counted_to_the_letter():
    nested = "[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH

    read_documents(nested, source="f")
    with pytest.raises(ManifestError, match="nested"):
        read_documents(f"[{nested}]", source="f")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"a": 1,\n "b": {"c": 1,\n "c": 2}}', "f: key 'c' is given twice"),
        ('{"a": 1,}', "f:1: "),
        ("[" * 100_000, "f: it nests too deep"),
        ("[1]", "f: not a JSON object"),
        ('{"a": ' + "9" * 10_000 + "}", "f: Exceeds the limit"),
        ("", "f:1: Expecting value"),
    ],
)
def test_json_is_refused_with_what_is_wrong(text, expected):
    with pytest.raises(ManifestError) as refused:
        check_json(text, source="f")

    assert expected in str(refused.value)


def test_json_with_text_like_numbers_passes():
    check_json('{"NaN": "1e999", "a": [1e-05, "\\" 1e999"]}', source="f")


@pytest.mark.parametrize("text", ['{"a": 1,\n "b": NaN}', '{"a": 1e999}', '{"a": -Infinity}'])
def test_numbers_that_python_writes_into_a_config_pass(text):
    check_json(text, source="f")
