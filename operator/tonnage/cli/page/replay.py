"""A replay as one page: what Tonnage saves, every policy in figures, and each of them over time."""

from collections.abc import Iterator, Sequence

from tonnage.cli.answers.replays import CaseResult, Replays
from tonnage.cli.page.document import document
from tonnage.cli.page.drawing import SERIES, Picture
from tonnage.cli.page.over_time import PolicyCourse, course_picture, top_of
from tonnage.cli.text.replay import replay_report
from tonnage.replay.policy import description_of


def replay_page(found: Replays) -> str:
    """Return the whole page: the report, and the pictures of each GPU class and cold start."""
    deployment, target = found.question.model, found.question.target
    pictures = (
        picture
        for number, (_, fared) in enumerate(found.by_start())
        for picture in _courses(number, fared, target)
    )
    title = f"Tonnage replay: {deployment.namespace}/{deployment.name}"
    return document(title, lambda console: replay_report(found, console), pictures)


def _courses(number: int, found: Sequence[CaseResult], target: float) -> Iterator[Picture]:
    """Yield the picture of each policy with its first seed, all on one scale."""
    firsts = [(each, each.outcomes[0].points) for each in found if each.outcomes[0].points]
    for place, (each, points) in enumerate(firsts):
        color, _ = SERIES[found.index(each) % len(SERIES)]
        course = PolicyCourse(
            name=str(each.policy),
            what=description_of(each.policy),
            points=points,
            target=target,
            most=top_of([points for _, points in firsts]),
            color=color,
        )
        yield course_picture(course, name=f"replay-{number}-{place}")
