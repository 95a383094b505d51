"""The bench that holds plans against the demand that came."""

from forecast_coverage import LEADS_S, QUANTILES, Counted, coverage_of, page_of

from tonnage.units import HOUR_S

EACH_S = 0.5


def arrivals(until_s, *, jump_s=None):
    """Two requests a second, four times as many from ``jump_s`` on."""
    found, at_s = [], 0.0
    while at_s < until_s:
        found.append(at_s)
        at_s += EACH_S if jump_s is None or at_s < jump_s else EACH_S / 4
    return found


class TestCoverage:
    def test_of_an_even_rate_is_whole_and_for_nothing_more(self):
        found = coverage_of(Counted(arrivals(2 * HOUR_S)), 2 * HOUR_S)

        assert {cell[0] for cell in found} == {False, True}
        assert all(cell.covered == cell.plans for cell in found.values())
        ratios = [cell.planned_per_s / cell.came_per_s for cell in found.values()]
        assert all(0.99 <= ratio <= 1.06 for ratio in ratios)

    def test_of_a_fall_plans_for_what_came_last_where_there_is_no_burst(self):
        falls = [
            at_s for index, at_s in enumerate(arrivals(HOUR_S)) if at_s < 1800 or index % 4 == 0
        ]
        found = coverage_of(Counted(falls), HOUR_S)

        cell = found[False, LEADS_S[0], QUANTILES[0]]
        # A window of 15 minutes ends within two where it is denied; a median lasts for five more.
        assert cell.planned_per_s - cell.came_per_s < 4 * (2.0 - 0.5)

    def test_lacks_the_minutes_of_a_jump_that_no_plan_could_know(self):
        found = coverage_of(Counted(arrivals(HOUR_S, jump_s=HOUR_S / 2)), HOUR_S)

        missed = [found[False, lead_s, 0.5] for lead_s in LEADS_S]
        # The minutes of a lead, and the one in which it jumps.
        assert [each.plans - each.covered for each in missed] == [2, 5, 11]

    def test_is_a_row_for_each_lead(self):
        page = page_of({"even": coverage_of(Counted(arrivals(HOUR_S)), HOUR_S)})

        rows = [line for line in page.splitlines() if line.startswith("| even")]
        assert len(rows) == len(LEADS_S)
        assert all(row.count("100%, ") == len(QUANTILES) for row in rows)
