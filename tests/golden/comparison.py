"""How our values are held against a row of the table."""

import math
from collections.abc import Iterator

from tonnage.units import significant

ROUNDING = 1e-12


def cells(value, path=""):
    """Yield (path, leaf) of nested mappings and lists; a plain value has the empty path."""
    if isinstance(value, dict):
        for key, each in value.items():
            yield from cells(each, f"{path}/{key}")
    elif isinstance(value, list | tuple):
        for index, each in enumerate(value):
            yield from cells(each, f"{path}[{index}]")
    else:
        yield path, value


def differences(ours, stated, *, rel_tol=0.0) -> list[str]:
    """Say every cell in which our value is not the stated one to the tolerance."""
    mine, theirs = dict(cells(ours)), dict(cells(stated))
    lacking = [f"{path}: stated {theirs[path]}, not computed" for path in theirs.keys() - mine]
    unasked = [f"{path}: computed {mine[path]}, not stated" for path in mine.keys() - theirs]
    wrong = [
        f"{path}: ours {mine[path]}, stated {theirs[path]}, rel_tol {rel_tol}"
        for path in theirs.keys() & mine.keys()
        if not agrees(mine[path], theirs[path], rel_tol)
    ]
    return sorted(lacking + unasked + wrong)


def agrees(ours, stated, rel_tol):
    """Tell whether two leaves are equal to the tolerance; none: but for binary rounding."""
    if isinstance(stated, str):
        return ours == stated
    return abs(ours - stated) <= max(rel_tol, ROUNDING) * abs(stated)


def stated_by(row):
    """Return what a row states: a value, cases, a table by columns, or several of them."""
    stated = {key: row[key] for key in ("value", "cases", "ways_out_gb") if key in row}
    if "columns" in row:
        return columns_of(row)
    return stated if len(stated) > 1 else next(iter(stated.values()))


def columns_of(table):
    """Return a table as lists by column name."""
    return dict(zip(table["columns"], map(list, zip(*table["rows"], strict=True)), strict=True))


def selected(table, selectors) -> Iterator[tuple[str, int]]:
    """Yield (column, line number) of the cells that selectors like ``tok_s[fp8, H100]`` name."""
    for selector in selectors:
        column, _, words = selector.partition("[")
        wanted = [word.strip() for word in words.rstrip("]").split(",") if word.strip()]
        for number, line in enumerate(table["rows"]):
            labels = [cell for cell in line if isinstance(cell, str)]
            if not wanted or any(label.startswith(word) for label in labels for word in wanted):
                yield column, number


def beats(column, stated, bound):
    """Tell whether a stated figure is better than physics: less time, or more of all else."""
    return stated < bound if "ms" in column.split("_") else stated > bound


def factor(predicted, stated):
    """Return by what factor two figures differ, at least 1."""
    ratio = predicted / stated
    return max(ratio, 1 / ratio) if ratio > 0 else math.inf


def span(values) -> str:
    """Write a list of figures as its range."""
    low, high = significant(min(values)), significant(max(values))
    return low if low == high else f"{low}..{high}"
