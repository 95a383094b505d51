"""SECURITY.md is numbered sentences, each with a test in the page of faults and abuse."""

import re
from pathlib import Path

import pytest

from tonnage.api.pod_rules import MOST_BYTES as TEMPLATE_BYTES
from tonnage.cli.read.bench_results import MOST_VALUES
from tonnage.cluster.calls import MOST_BYTES
from tonnage.cluster.kube import PAGE_BYTES
from tonnage.cluster.pages import MOST_LEVELS, MOST_OBJECT_BYTES
from tonnage.cluster.prometheus import QueryLimits
from tonnage.cluster.queries import SERIES_BYTES
from tonnage.control.input.writers import REPLICAS_LONGEST_S
from tonnage.fleet.heartbeat import MOST_CLIENTS
from tonnage.fleet.references import MOST_BYTES as CONFIG_BYTES
from tonnage.manifests.children import MOST_LABELS, MOST_SAMPLES
from tonnage.replay.trace_rows import MOST_COLUMN_BYTES, MOST_REQUESTS, TraceLimits
from tonnage.units import GIB, KIB, MIB, MILLION

HERE = Path(__file__).parent
TEXT = (HERE.parents[1] / "SECURITY.md").read_text()
SHOWN = re.findall(r"^\| (S\d+) \| `.+` \|$", (HERE / "README.md").read_text(), re.MULTILINE)
UNNUMBERED = ("Security", "What is left to you", "Not tested")
CLAIM = re.compile(r"- \*\*(S\d+)\*\* (.+)", re.DOTALL)
CODE = re.compile(r"`[^`]*`|\[[^]]*\]\([^)]*\)")
MOST_LINES = 3
ANSWERS, TRACES = QueryLimits(), TraceLimits()


def entries_of(text):
    """Paragraphs and entries of lists, of the sections whose sentences have numbers."""
    for section in re.split(r"^#+ ", text, flags=re.MULTILINE)[1:]:
        heading, _, body = section.partition("\n")
        if heading not in UNNUMBERED:
            yield from filter(None, re.split(r"\n\s*\n|\n(?=- )", body.strip()))


ENTRIES = [*entries_of(TEXT)]


def test_every_sentence_has_a_number_and_each_number_a_test():
    found = {entry: CLAIM.fullmatch(entry) for entry in ENTRIES}

    assert [entry for entry, match in found.items() if match is None] == []
    numbers = [match[1] for match in found.values()]
    assert len({*numbers}) == len(numbers)
    assert sorted(numbers) == sorted(SHOWN)
    assert "](tests/faults/README.md#what-securitymd-says)" in TEXT


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry[4:10].strip("*. "))
def test_a_sentence_is_one_and_short(entry):
    said = CODE.sub("code", entry)

    assert re.findall(r"[.?!](?=\s|$)", said) == ["."]
    assert len(entry.splitlines()) <= MOST_LINES


@pytest.mark.parametrize(
    "named",
    [
        f"{MOST_SAMPLES:,} samples and {MOST_LABELS} labels",
        f"template has at most {TEMPLATE_BYTES // KIB} KiB",
        f"up to {REPLICAS_LONGEST_S / 60:.0f} minutes apart",
        f"{ANSWERS.answer_bytes // MIB} MiB, {ANSWERS.answer_series:,} series,",
        f"{SERIES_BYTES // KIB} KiB of samples in a series",
        f"a round have at most {ANSWERS.all_bytes // MIB} MiB, or {ANSWERS.pod_bytes // KIB} KiB a",
        f"{MOST_CLIENTS} connections",
        f"above {MOST_OBJECT_BYTES // KIB} KiB as JSON",
        f"deeper than {MOST_LEVELS} levels",
        f"{MOST_BYTES // MIB} MiB at most; a page of a list {PAGE_BYTES // MIB} MiB",
        f"`config.json` in a ConfigMap has {CONFIG_BYTES // MIB} MiB",
        f"{MOST_REQUESTS // MILLION} million rows, {TRACES.max_bytes // GIB} GiB unpacked",
        f"{MOST_COLUMN_BYTES // MIB} MiB of a column",
        f"{MOST_VALUES // MILLION} million values",
    ],
)
def test_a_limit_that_it_names_is_that_of_the_code(named):
    assert named in " ".join(TEXT.split())
