"""What ``--hf-overrides`` changes in a configuration."""

from collections.abc import Iterable, Mapping
from typing import Final

from tonnage.api.strict_json import read_json
from tonnage.catalog.config.keys.decoder import ModelConfigError

FLAG: Final = "--hf-overrides"
_BLOCKS: Final = frozenset(
    {"text_config", "thinker_config", "llm_config", "language_config", "vision_config",
     "audio_config"}
)  # fmt: skip
_ROPE: Final = ("rope_scaling", "rope_parameters")


def overrides_in(arguments: Iterable[str]) -> str:
    """Return the value of the flag, the last of several; empty: it is absent."""
    values = [each.partition("=")[2] for each in arguments if each.startswith(f"{FLAG}=")]
    return values[-1] if values else ""


def with_overrides(config: Mapping[str, object], written: str) -> dict[str, object]:
    """Return the configuration with the keys of the flag's value, as vLLM takes them over.

    Blocks that are configurations of their own are merged, all others replaced.

    Raises:
        ModelConfigError: the value is no JSON object.

    Sources:
        [vllm-source] config/model.py _apply_dict_overrides, _update_nested.
    """
    try:
        overrides = read_json(written, is_finite=False) if written else {}
    except ValueError as error:
        raise ModelConfigError(f"{FLAG}: {error}") from error
    if not isinstance(overrides, Mapping):
        raise ModelConfigError(f"{FLAG} {written!r:.100} is no JSON object")
    return _merged(config, overrides)


def _merged(config: Mapping[str, object], overrides: Mapping[str, object]) -> dict[str, object]:
    scales = not overrides.keys().isdisjoint(_ROPE)
    merged = {key: value for key, value in config.items() if not (scales and key in _ROPE)}
    for key, value in overrides.items():
        block = config.get(key)
        is_block = key in _BLOCKS and isinstance(block, Mapping) and isinstance(value, Mapping)
        merged[key] = _merged(block, value) if is_block else value  # type: ignore[arg-type]
    return merged
