"""Every figure and formula cites a listed source, and every listed source is cited."""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import tonnage

PACKAGE = Path(tonnage.__file__).parent
CATALOG = PACKAGE / "catalog"
LISTED = tomllib.loads((CATALOG / "sources.toml").read_text())
DATA_FILES = sorted(path for path in CATALOG.rglob("*.toml") if path.name != "sources.toml")


def keys_in_docstrings() -> set[str]:
    return {
        key
        for path in PACKAGE.rglob("*.py")
        for block in re.findall(r'Sources?:\n((?:(?: {4})+(?!""").+\n)+)', path.read_text())
        for key in re.findall(r"\[([a-z0-9-]+)\]", block)
    }


def keys_in(value: object) -> Iterator[str]:
    """Yield the keys in ``source = "key"`` and in tables with ``key`` and ``quote``."""
    if isinstance(value, list):
        for item in value:
            yield from keys_in(item)
    elif isinstance(value, dict):
        for name, item in value.items():
            is_key = name == "source" or (name == "key" and "quote" in value)
            if is_key and isinstance(item, str):
                yield item
            else:
                yield from keys_in(item)


def keys_in_data() -> set[str]:
    return {key for path in DATA_FILES for key in keys_in(tomllib.loads(path.read_text()))}


def test_citations_and_sources_agree() -> None:
    assert keys_in_docstrings() | keys_in_data() == set(LISTED)


@pytest.mark.parametrize("key", LISTED)
def test_a_source_says_what_it_is_and_how_it_was_read(key: str) -> None:
    assert set(LISTED[key]) == {"title", "publisher", "where", "read"}
    assert LISTED[key]["read"] in {"first-hand", "cited", "common"}


@pytest.mark.parametrize("path", DATA_FILES, ids=lambda path: path.stem)
def test_every_data_file_cites(path: Path) -> None:
    assert set(keys_in(tomllib.loads(path.read_text())))


def test_no_source_leads_to_a_package_registry() -> None:
    text = (CATALOG / "sources.toml").read_text().lower()

    assert not re.search(r"pypi|pythonhosted|npmjs|proxy\.golang|deb\.debian|crates\.io", text)
