"""The speculative decoding of an engine that somebody else set up, as far as it can be counted."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from tonnage.catalog.assumption import Assumption
from tonnage.catalog.gpu import CatalogError
from tonnage.catalog.models import built_in_model
from tonnage.catalog.parameters import num_parameters
from tonnage.catalog.shape import ModelShape, StateAttention
from tonnage.sizing.provenance import Figure, Input, Origin, assumed_inputs
from tonnage.sizing.request import SizingRequest
from tonnage.sizing.speculation import Speculation
from tonnage.units import count_of

CONFIG: Final = "--speculative-config"
SHORT_CONFIG: Final = "-sc"
SHORT_FORMS: Final = {
    "--spec-method": "method",
    "--spec-model": "model",
    "--spec-tokens": "num_speculative_tokens",
}
OF_TEXT: Final = frozenset({"ngram", "[ngram]", "ngram_gpu", "suffix"})
"""Methods that look drafts up, and load nothing."""
HEADS: Final = frozenset({"eagle", "eagle3"})
MOST_TOKENS: Final = 64
MOST_CHARS: Final = 80


def with_drafts(request: SizingRequest, found: Mapping[str, str]) -> SizingRequest:
    """Return the request with the drafts that the flags ask for; as it is where there are none.

    What heads and draft models take is bounded. Nobody says how many drafts are accepted, so none
    is counted: a step verifies all of them and gives one token.

    Raises:
        ValueError: it is not known what such drafts take, or vLLM does not read the flag.

    Sources:
        [vllm-source] config/speculative.py SpeculativeConfig: methods, and which is taken where
        none is named; engine/arg_utils.py: --spec-method, --spec-model, --spec-tokens.
    """
    config = _config(found)
    if not config:
        return request
    name, model = str(config.get("method") or ""), str(config.get("model") or "")
    method = name or _method_of(model)
    layers = request.shape.num_draft_layers
    tokens = _tokens(config, layers if method.endswith("mtp") else 0)
    written = f"{CONFIG}: {method[:MOST_CHARS]}, {tokens} draft tokens"
    shape, bound = request.shape, ""
    if method not in OF_TEXT:
        shape, bound = _with_head(shape, method, model)
    drafts = Speculation(
        method="ngram" if method in OF_TEXT else "mtp", num_draft_tokens=tokens, acceptance_rate=0.0
    )
    assumption = Assumption(
        about="flags",
        taken=f"{written}, of which none is counted as accepted{bound}",
        effect="memory and time" if bound else "time",
        replaced_by="the cache and the speed that the first Ready pods show",
    )
    given = Input(figure=Figure.SPECULATION, value=str(drafts), origin=Origin.LOOKED_UP)
    return replace(
        request,
        shape=shape,
        speculation=drafts,
        inputs=(*request.inputs, given, *assumed_inputs([assumption])),
    )


def _config(found: Mapping[str, str]) -> dict[str, Any]:
    """Return what the flags say together: JSON, its keys one by one, and their short forms."""
    config: dict[str, Any] = {}
    if CONFIG in found:
        try:
            config = json.loads(found[CONFIG])
        except (ValueError, RecursionError):
            config = []  # type: ignore[assignment]  # refused below
        if not isinstance(config, dict):
            raise ValueError(f"{CONFIG} {found[CONFIG]!r:.90} is no JSON object")
        config = {str(key).replace("-", "_"): value for key, value in config.items()}
    for flag, value in found.items():
        name, dot, key = flag.partition(".")
        if dot and name in {CONFIG, SHORT_CONFIG}:
            config[key.replace("-", "_")] = value
        elif flag in SHORT_FORMS:
            config[SHORT_FORMS[flag]] = value
    return config


def _method_of(model: str) -> str:
    """Return the method where none is named: by the name of the draft's checkpoint."""
    known = ("eagle3", "eagle", "dflash", "medusa", "ngram")
    return next((each for each in known if each in model.lower()), "draft_model")


def _tokens(config: Mapping[str, Any], default: int) -> int:
    try:
        tokens = int(config.get("num_speculative_tokens") or default)
    except (TypeError, ValueError, OverflowError):
        tokens = 0
    if not 1 <= tokens <= MOST_TOKENS:
        raise ValueError(
            f"{CONFIG}: num_speculative_tokens must be from 1 to {MOST_TOKENS} to be planned for"
        )
    return tokens


def _with_head(shape: ModelShape, method: str, model: str) -> tuple[ModelShape, str]:
    """Return the shape with what drafts, and how that is bounded; empty: its own draft layers."""
    if method.endswith("mtp") and shape.num_draft_layers:
        return shape, ""
    extra, layers = shape.vocab_size * shape.hidden_size, 1
    what = "its head counted as a layer of the model and a further output matrix in 16 bits"
    if method not in HEADS:
        try:
            draft = built_in_model(model)
        except CatalogError as error:
            raise ValueError(
                f"{CONFIG}: it is not known what drafts by {method[:MOST_CHARS]} with "
                f"{model[:MOST_CHARS] or 'no model'} take; known are mtp, eagle, eagle3, ngram, "
                "suffix, and draft models of the catalogue"
            ) from error
        extra, layers = num_parameters(draft), draft.num_layers
        further = count_of(layers, "further layer")
        what = f"{draft.name} counted as {further} of the model, and in 16 bits"
    if all(isinstance(each, StateAttention) for _, each in shape.attentions()):
        raise ValueError(f"{CONFIG}: no layer of {shape.name} looks at every token, as drafts do")
    bounded = replace(shape, num_draft_layers=layers, rotary_elements=shape.rotary_elements + extra)
    return bounded, f"; {what}"
