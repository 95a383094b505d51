"""Plans, and reasoned noes, as one page that needs nothing beside itself."""

import re
from collections.abc import Sequence
from typing import Final

from tonnage.cli.answers import plan_words as words
from tonnage.cli.answers.planning import Planned, Refused
from tonnage.cli.answers.roofline import roofline
from tonnage.cli.page.document import document
from tonnage.cli.page.memory import memory_picture, memory_table
from tonnage.cli.page.roofline import batches_table, roofline_picture
from tonnage.cli.page.tables import Column, facts, numbers, plain_table
from tonnage.explain.at_demand import demand_rows
from tonnage.explain.words import inputs

STEP: Final = re.compile(r" (?=- |is [0-9.]+ \w+ short|leaves [0-9])|(?<=;) ")
"""Where the arithmetic of a refusal goes on in another line."""
INPUTS: Final = (
    Column(title="input", kind="name"),
    Column(title="value", kind="text"),
    Column(title="origin", kind="origin"),
)
SAVINGS: Final = (Column(title="change in the spec", kind="name"), *numbers(*words.SAVING_NUMBERS))
OFFERS: Final = (Column(title="change in the spec", kind="name"), *numbers(*words.OFFER_NUMBERS))


def plan_page(answers: Sequence[Planned | Refused]) -> str:
    """Return the whole page: every object with its answer, figures and reasons."""
    return document(
        "plan.html.j2",
        sections=[_section(answer, f"plan-{k}") for k, answer in enumerate(answers, start=1)],
    )


def _section(answer: Planned | Refused, name: str) -> dict[str, object]:
    section = {
        "id": name,
        "object": words.object_label(answer),
        "subject": words.subject(answer),
        "verdict": words.verdict(answer),
    }
    more = _plan_page(answer, name) if isinstance(answer, Planned) else _refusal_page(answer)
    return section | more


def _plan_page(answer: Planned, name: str) -> dict[str, object]:
    sizing = answer.sizing
    reasons = [(reason.code, reason.message) for reason in answer.reasons]
    roof = roofline(sizing)
    return {
        "kind": "short" if words.is_short(answer) or words.obstacles(answer) else "yes",
        "memory": memory_picture(sizing.budget, name=f"{name}-memory"),
        "parts": memory_table(sizing.budget),
        "has_spread": sizing.budget.parts_spread_bytes > 0,
        "given_pool": sizing.budget.given_pool,
        "roofline": roofline_picture(roof, name=f"{name}-roofline"),
        "batches": batches_table(roof),
        "gpu": sizing.request.gpu.name,
        "demand": facts(demand_rows(sizing, answer.replicas)),
        "savings": plain_table(SAVINGS, map(words.saving_cells, answer.savings)),
        "questions": words.questions(answer),
        "inputs": plain_table(INPUTS, inputs(sizing)),
        "plan": facts([*words.summary(answer).items(), *reasons]),
    }


def _refusal_page(answer: Refused) -> dict[str, object]:
    return {
        "kind": "no",
        "steps": STEP.split(answer.message),
        "offers": plain_table(
            OFFERS,
            (("\n".join(each.changes), *words.offer_numbers(each)) for each in answer.offers),
        ),
        "offer_notes": list(words.offer_notes(answer.offers)),
    }
