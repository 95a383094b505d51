"""Templates filled in: all that is not a template or a picture is escaped."""

from collections.abc import Mapping
from typing import Final

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from tonnage.cli.answers.batches import BATCH_NOTE
from tonnage.cli.page.plain import plain

WORDS: Final[Mapping[str, str]] = {
    "replica": "one running engine, on all the GPUs that it is split over",
    "split": "how a replica is spread over GPUs: TP tensor, PP pipeline, DP data parallel",
    "TTFT": "time to first token: from the request to the first token of its answer",
    "TPOT": "time per output token, each one after the first",
    "SLO": "the latencies that are promised, each for a share of the requests (p95: 95 of 100)",
    "KV cache": "what the model remembers of each token of the requests that run",
    "max-num-seqs": "the engine's flag for how many requests run at once",
    "decoding": "requests that receive their answer, one token of each per step",
    "prefill": "reading a prompt, before its first token",
    "load line": "the highest load that keeps every promise; replicas are counted at it",
    "full use": "every replica at its load line",
    "SLO ceiling": "requests with which the mean step takes as long as the promised TPOT",
    "memory ceiling": "requests of the usual length that the KV cache holds",
    "FLOP per byte": "work for each byte that is read from the GPU's memory",
    "ridge": "FLOP per byte at which memory and arithmetic of a GPU take equally long",
    "origin": "given in the manifest, looked up in the catalogue, guessed, or measured",
}


def _finalized(value: object) -> object:
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
        finalize=_finalized,
    )
    return environment.get_template(template).render(words=WORDS, batch_note=BATCH_NOTE, **values)
