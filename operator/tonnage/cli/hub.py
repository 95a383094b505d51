"""A model's config.json from the Hugging Face hub, asked for only when the user says so."""

import os
from collections.abc import Mapping
from http import HTTPStatus
from typing import Final

from tonnage.catalog.gpu import CatalogError, UnknownModelError
from tonnage.catalog.models import built_in_model
from tonnage.cli.console import Failure
from tonnage.units import MIB

PUBLIC_HUB: Final = "https://huggingface.co"
TIMEOUT_S: Final = 10
MAX_BYTES: Final = MIB
GATED: Final = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})


def config_from_hub(
    model_id: str, revision: str | None, *, environment: Mapping[str, str] = os.environ
) -> str | None:
    """Return the config.json of a model that the catalogue lacks; None for one that it has.

    ``HF_ENDPOINT`` names another hub, ``HF_TOKEN`` opens gated models.

    Raises:
        Failure: the hub does not answer, or has no such file for this user.
    """
    try:
        built_in_model(model_id)
    except UnknownModelError:
        return _fetch(model_id, revision or "main", environment)
    except CatalogError:
        return None  # known, and refused: the plan says why
    return None


def _fetch(model_id: str, revision: str, environment: Mapping[str, str]) -> str:
    import requests  # noqa: PLC0415  (a plan needs no network)

    hub = environment.get("HF_ENDPOINT", PUBLIC_HUB).rstrip("/")
    token = environment.get("HF_TOKEN")
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    address = f"{hub}/{model_id}/resolve/{revision}/config.json"
    try:
        with requests.get(address, headers=headers, timeout=TIMEOUT_S, stream=True) as answer:
            if answer.status_code != HTTPStatus.OK:
                hint = "; a gated model needs HF_TOKEN" if answer.status_code in GATED else ""
                raise Failure(f"--hub: {hub} answered {answer.status_code} for {model_id}{hint}")
            content = answer.raw.read(MAX_BYTES + 1, decode_content=True)
    except requests.RequestException as error:
        raise Failure(f"--hub: {hub} cannot be reached: {type(error).__name__}") from error
    if len(content) > MAX_BYTES:
        raise Failure(f"--hub: config.json of {model_id} exceeds {MAX_BYTES} bytes")
    return str(content.decode(errors="replace"))
