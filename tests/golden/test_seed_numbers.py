"""Every figure that the source documents state, against the product's own functions."""

import pytest

from golden import (
    rows_cost,
    rows_effects,
    rows_memory,
    rows_roofline,
    rows_speed,
    rows_tables,
)
from golden.comparison import (
    agrees,
    beats,
    cells,
    columns_of,
    differences,
    factor,
    selected,
    span,
    stated_by,
)
from golden.documents import CALCULATIONS, ROWS, TABLE

MODULES = (rows_cost, rows_effects, rows_memory, rows_roofline, rows_speed, rows_tables)


def of_kind(kind):
    return [row_id for row_id, row in ROWS.items() if row["kind"] == kind]


def test_every_row_of_the_table_has_a_calculation_and_every_calculation_a_row():
    assert CALCULATIONS.keys() == ROWS.keys()
    assert len(ROWS) == len(TABLE["rows"])
    assert {row["kind"] for row in ROWS.values()} == {"exact", "erratum", "ballpark", "audited"}


@pytest.mark.parametrize("row_id", of_kind("exact"))
def test_arithmetic_comes_out_as_printed(row_id):
    row = ROWS[row_id]

    ours = CALCULATIONS[row_id]()

    assert differences(ours, stated_by(row), rel_tol=row.get("rel_tol", 0)) == [], row["what"]


@pytest.mark.parametrize("row_id", of_kind("erratum"))
def test_a_wrong_figure_is_not_reproduced(row_id):
    row = ROWS[row_id]

    ours = CALCULATIONS[row_id]()

    assert differences(ours, row["value"], rel_tol=row.get("rel_tol", 0)) == [], row["what"]
    printed = dict(cells(row["printed"]))
    mine = dict(cells(ours))
    for path in printed.keys() & mine.keys():
        assert not agrees(mine[path], printed[path], row.get("rel_tol", 0)), row["what"]


@pytest.mark.parametrize("row_id", of_kind("ballpark"))
def test_a_typical_figure_is_near_the_prediction(row_id, report):
    row = ROWS[row_id]

    predicted = [value for _, value in cells(CALCULATIONS[row_id]())]

    low, high = allowed(row)
    stated = row.get("value", f"{low:g}..{high:g}")
    ratio = span([each / row["value"] for each in predicted]) if "value" in row else "-"
    report.append((row_id, "ballpark", "", span(predicted), str(stated), ratio))
    assert all(low <= each <= high for each in predicted), row["what"]


def allowed(row):
    """Return the inclusive range in which a prediction must lie."""
    if "between" in row:
        return row["between"]
    return row["value"] / row["within_factor"], row["value"] * row["within_factor"]


@pytest.mark.parametrize("row_id", of_kind("audited"))
class TestAnAuditedTable:
    def test_has_the_bounds_that_physics_sets(self, row_id):
        table, ours = ROWS[row_id], CALCULATIONS[row_id]()

        for column, bound in table["bound"].items():
            assert differences(ours.bound[column], bound, rel_tol=0.01) == [], column

    def test_beats_physics_where_it_is_said_to(self, row_id, report):
        table, ours = ROWS[row_id], CALCULATIONS[row_id]()
        stated = columns_of(table)
        fast = list(selected(table, table["beats_bound"]))

        slow = [
            (column, line)
            for column, line in fast
            if not beats(column, stated[column][line], ours.bound[column][line])
        ]

        report += report_lines((row_id, "bound, beaten"), fast, ours.bound, stated)
        assert slow == []

    def test_is_within_its_factor_of_physics_elsewhere(self, row_id, report):
        table, ours = ROWS[row_id], CALCULATIONS[row_id]()
        stated = columns_of(table)
        others = elsewhere(table, ours)

        far = [
            (column, line)
            for column, line in others
            if factor(ours.bound[column][line], stated[column][line]) > table["within_factor"]
        ]

        report += report_lines((row_id, "prediction"), others, ours.predicted, stated)
        assert far == []

    def test_is_never_predicted_to_be_better_than_physics(self, row_id):
        ours = CALCULATIONS[row_id]()

        for column, line in selected(ROWS[row_id], ours.bound):
            assert not beats(column, ours.predicted[column][line], ours.bound[column][line])

    def test_is_exact_where_it_only_computes(self, row_id):
        table, ours = ROWS[row_id], CALCULATIONS[row_id]()
        stated = columns_of(table)

        for column in table.get("exact_columns", []):
            assert ours.exact[column] == stated[column]


def elsewhere(table, ours):
    """Return the cells that are not said to beat the bound."""
    fast = set(selected(table, table["beats_bound"]))
    return [cell for cell in selected(table, ours.bound) if cell not in fast]


def report_lines(labels, chosen, ours, stated):
    """Yield one line per column of the chosen cells."""
    for column in dict.fromkeys(column for column, _ in chosen):
        pairs = [
            (ours[column][line], stated[column][line]) for each, line in chosen if each == column
        ]
        mine, theirs = zip(*pairs, strict=True)
        ratios = [one / other for one, other in pairs]
        yield (*labels, column, span(mine), span(theirs), span(ratios))
