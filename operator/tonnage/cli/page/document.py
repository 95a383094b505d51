"""Templates filled in: all that is not a template or a picture is escaped."""

from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tonnage.cli.answers.batches import BATCH_NOTE
from tonnage.cli.page.plain import plain
from tonnage.explain.glossary import GLOSSARY

WORDS: Final = (
    "replica", "split", "TTFT", "TPOT", "SLO", "SLO target", "goodput", "KV cache", "max-num-seqs",
    "decoding", "prefill", "load line", "full use", "SLO ceiling", "memory ceiling",
    "FLOP per byte", "ridge", "origin",
)  # fmt: skip
"""Of the glossary, those that a page uses."""


def _finalize(value: object) -> object:
    """Return what a template inserts; text of others is still to be escaped."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    return plain(value)


def document(template: str, **values: object) -> str:
    """Return a page that needs nothing beside itself."""
    environment = Environment(
        loader=PackageLoader("tonnage.cli.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_finalize,
    )
    words = {word: GLOSSARY[word].meaning for word in WORDS}
    return environment.get_template(template).render(words=words, batch_note=BATCH_NOTE, **values)
