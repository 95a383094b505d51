"""A replay as one page: what Tonnage saves, every policy in figures, and each of them over time."""

from collections.abc import Sequence

from tonnage.cli.answers import replay_words as words
from tonnage.cli.answers.replays import Case, CaseResult, ReplayQuestion, Replays
from tonnage.cli.page.cost_kept import Dot, colors_of, cost_kept_picture
from tonnage.cli.page.document import document
from tonnage.cli.page.over_time import PolicyCourse, course_picture, top_of
from tonnage.cli.page.tables import Column, Row, Table, facts, numbers
from tonnage.replay.policy import description_of


def replay_page(found: Replays) -> str:
    """Return the whole page, a section for each GPU class and cold start."""
    deployment = found.deployment
    return document(
        "replay.html.j2",
        object=f"{deployment.namespace}/{deployment.name}",
        model=deployment.spec.model.id,
        source=found.question.source,
        cases=[
            _case(number, case, fared, found.question)
            for number, (case, fared) in enumerate(found.by_case())
        ],
        refused=facts((each.gpu, each.message) for each in found.question.refused),
        notes=list(words.notes(found)),
    )


def _case(
    number: int, case: Case, found: Sequence[CaseResult], question: ReplayQuestion
) -> dict[str, object]:
    fared, target = list(found), question.target
    scatter = _scatter(number, fared, target)
    return {
        "title": words.case_title(case),
        "kind": words.verdict_kind(fared, target),
        "verdict": words.headline(fared, target),
        "ran": words.ran_words(case, fared, question),
        "table": _table(fared, target),
        "notes": [f"{each.policy}: {note}" for each in fared for note in each.notes],
        "fluid": words.fluid_words(fared),
        "scatter": scatter,
        "target_note": f"Below the line the target of {words.percent(target)} is missed.",
        "courses": list(_courses(number, fared, target)),
    }


def _table(found: Sequence[CaseResult], target: float) -> Table:
    colors = colors_of([str(each.policy) for each in found])
    rows = (
        Row(
            cells=(
                str(each.policy),
                *words.cells(each),
                "" if each.keeps(target) else "misses the target",
            ),
            color=colors[str(each.policy)][0],
        )
        for each in found
    )
    columns = (Column(title=words.POLICY, kind="name"), *numbers(*words.COLUMNS), Column(title=""))
    return Table(columns=columns, rows=tuple(rows))


def _scatter(number: int, found: Sequence[CaseResult], target: float) -> object:
    judged = [(str(each.policy), one) for each in found for one in each.figures]
    if not judged:
        return None
    by_day = words.is_by_day(judged[0][1])
    dots = [
        Dot(
            policy=policy,
            gpu_hours=one.gpu_hours_per_day if by_day else one.gpu_hours,
            attainment=one.attainment,
        )
        for policy, one in judged
    ]
    unit = "a day" if by_day else "of the traffic"
    return cost_kept_picture(dots, target, unit=unit, name=f"replay-{number}-cost")


def _courses(
    number: int, found: Sequence[CaseResult], target: float
) -> Sequence[dict[str, object]]:
    """Return the picture of each policy with its first seed, all on one scale."""
    firsts = [(each, each.outcomes[0].points) for each in found if each.outcomes[0].points]
    most = top_of([points for _, points in firsts])
    colors = colors_of([str(each.policy) for each in found])
    return [
        {
            "policy": str(each.policy),
            "what": description_of(each.policy),
            "picture": course_picture(
                PolicyCourse(
                    name=str(each.policy),
                    points=points,
                    target=target,
                    most=most,
                    color=colors[str(each.policy)][0],
                ),
                name=f"replay-{number}-{place}",
            ),
        }
        for place, (each, points) in enumerate(firsts)
    ]
