"""Asks a release of vLLM what its models are: ``python tests/proof/oracle.py``.

Its own classes build every architecture that writes text, on tensors without content. Their answers
go into ``oracle.json``, and what is read here of the same config.json beside them into
``oracle.md``; a default test compares again. Needs what ``run.py`` needs.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from oracle_compare import page
from oracle_configs import BACKENDS, BY_HAND, CATALOGUE, CHANGES
from proof_sources import installed, unpacked

from tonnage.catalog.models import built_in_config
from tonnage_lab import vllm_cpu
from tonnage_lab.assets import cache_folder

HERE: Final = Path(__file__).parent
ANSWERS: Final = HERE / "oracle.json"
PAGE: Final = HERE / "oracle.md"
RELEASE: Final = "0.33.0"
LISTS: Final = ("oracle-packages.txt", "newer-packages.txt", "packages.txt")
LIMIT_S: Final = 3600
ALONE: Final = "of images or sound, and no class here"
"""Of what needs an encoder and has no configuration in transformers: there is nothing to ask."""
NO_EFFECT: Final = frozenset(
    {"_name_or_path", "_attn_implementation", "add_cross_attention", "attention_dropout",
     "attention_probs_dropout_prob", "attn_pdrop", "bos_token_id", "bos_id",
     "chunk_size_feed_forward", "cls_token_id",
     "decoder_start_token_id", "dropout", "embd_pdrop", "eos_token_id", "hidden_dropout_prob",
     "id2label", "initializer_factor", "initializer_range", "label2id", "layer_norm_eps",
     "layer_norm_epsilon", "mask_token_id", "output_attentions", "output_hidden_states",
     "output_router_logits", "pad_token_id", "problem_type", "resid_pdrop", "return_dict",
     "rms_norm_eps", "router_aux_loss_coef", "sep_token_id", "task_specific_params",
     "transformers_version", "unk_token_id", "use_cache", "vision_config", "audio_config"}
)  # fmt: skip
"""Keys of configurations that neither bytes nor work of the text part follow from."""


def main() -> None:
    options = _options()
    kept = json.loads(ANSWERS.read_text())["architectures"] if ANSWERS.exists() else {}
    said = {} if options.page_only else _asked(options)
    if options.page_only or options.only:
        said = {**kept, **said}
    ANSWERS.write_text(_text({"release": RELEASE, "architectures": said}))
    PAGE.write_text(page(json.loads(ANSWERS.read_text())))
    print(f"{ANSWERS}, {PAGE}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", default=str(cache_folder() / "proof"))
    parser.add_argument("--sources", help="of the release, where they are unpacked already")
    parser.add_argument("--only", nargs="*", help="architectures; the other answers stay")
    parser.add_argument("--page-only", action="store_true", help="compare with what was answered")
    parser.add_argument("--places", help="where the parameters of each place of a model go")
    return parser.parse_args()


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    cache = Path(options.cache)
    source = Path(options.sources) if options.sources else unpacked(RELEASE, cache)
    folders = [HERE, *(installed(HERE / each, cache) for each in LISTS)]
    with tempfile.TemporaryDirectory() as temporary:
        given, answers = Path(temporary) / "given.json", Path(temporary) / "answers.json"
        given_files = {**BY_HAND, **{name: _known(name, of) for name, of in CATALOGUE.items()}}
        asks = {
            "by hand": given_files,
            "changes": CHANGES,
            "backends": BACKENDS,
            "only": options.only,
        }
        given.write_text(json.dumps(asks))
        subprocess.run(
            [vllm_cpu.ensure(), HERE / "oracle_engine.py", source, given, answers],
            check=True, timeout=LIMIT_S, cwd=temporary,
            env={"PATH": "/usr/bin:/bin", "HOME": temporary,
                 "PYTHONPATH": ":".join(map(str, folders))},
        )  # fmt: skip
        said: dict[str, Any] = json.loads(answers.read_text())
    if options.places:
        Path(options.places).write_text(json.dumps(said, indent=1))
    return {
        name: _kept(answer) for name, answer in said.items() if answer.get("not built") != ALONE
    }


def _known(architecture: str, model: str) -> dict[str, Any]:
    """Return the configuration of a model of the catalogue, or its text part, not quantized."""
    name, _, part = model.partition("#")
    config = built_in_config(name)
    config = {**(config[part] if part else config), "architectures": [architecture]}
    config |= CHANGES.get(architecture, {})
    return {key: value for key, value in config.items() if key != "quantization_config"}


def _kept(answer: Mapping[str, Any]) -> dict[str, Any]:
    kept = {key: value for key, value in answer.items() if key not in {"by place", "config"}}
    return {"config": _smallest(answer["config"]), **kept} if "config" in answer else kept


def _smallest(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration without the keys that say nothing here."""
    return {
        key: _smallest(value) if isinstance(value, dict) else value
        for key, value in config.items()
        if key not in NO_EFFECT
    }


def _text(answers: Mapping[str, Any]) -> str:
    """Return JSON with a line for each architecture."""
    lines = (f"{json.dumps(name)}: {json.dumps(said)}"
             for name, said in answers["architectures"].items())  # fmt: skip
    body = ",\n".join(lines)
    return f'{{"release": "{answers["release"]}", "architectures": {{\n{body}\n}}}}\n'


if __name__ == "__main__":
    main()
