"""Versions by number and by date, and what a server takes for its batches by itself."""

from pathlib import Path

import pytest

from tonnage.catalog.engine import batch_defaults, find_engine, parse_version
from tonnage.catalog.gpu import UnsupportedEngineError, built_in_gpus

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("latest@2026-08-26", (0, 28)),  # the day of its release
        ("latest@2026-08-25", (0, 27)),
        ("nightly@2026-08-25", (0, 28)),  # what is in the making then
        ("nightly-20260826", (0, 29)),
        ("main 2026-05-30, commit 5b8c30d", (0, 23)),
    ],
)
def test_a_dated_build_has_the_version_of_its_day(text: str, version: tuple[int, int]) -> None:
    assert parse_version(text) == version


def test_a_build_after_the_last_release_is_newer_than_any_that_was_read() -> None:
    assert find_engine("nightly@2026-11-20").is_guess
    assert not find_engine("latest@2026-11-20").is_guess


@pytest.mark.parametrize(
    "text",
    ["nightly", "nightly-5b8c30d62b754b57", "latest@2026-13-01", "2024", "latest@2023-01-01"],
)
def test_a_build_without_a_day_is_no_version(text: str) -> None:
    with pytest.raises(UnsupportedEngineError, match="nor dated like latest@2026-08-28"):
        parse_version(text)


@pytest.mark.parametrize(
    ("gpu", "minor", "seqs", "tokens"),
    [
        ("B200", "0.28", 1024, 16384),
        ("B200", "0.27", 1024, 8192),
        ("H100", "0.27", 1024, 8192),
        ("A100-80GB", "0.27", 256, 2048),
        ("L40S", "", 256, 2048),
        ("GB10", "", 256, 2048),
    ],
)
def test_batches_of_a_server_grow_with_the_memory(
    gpu: str, minor: str, seqs: int, tokens: int
) -> None:
    found = batch_defaults(built_in_gpus()[gpu], minor)

    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, tokens)


@pytest.mark.parametrize("version", ["0.35", "0.40.1", "1.0", "26.03-py3", "3.5.1", "25.09"])
def test_a_version_that_nobody_has_read_is_refused_with_those_that_are_planned(version):
    with pytest.raises(UnsupportedEngineError) as refusal:
        find_engine(version)

    assert f"engine.version {version}: Tonnage knows vLLM up to 0.33, and takes 0.34" in str(
        refusal.value
    )


def test_the_version_after_the_newest_is_taken_to_be_like_it():
    assert find_engine("0.34").is_guess
    assert not find_engine("0.33").is_guess
    for page in ("README.md", "deploy/site/pages/limits.md"):
        assert "vLLM 0.34 is planned as 0.33" in (ROOT / page).read_text()
