"""Asks a release of vLLM what its models are: ``python tests/proof/oracle.py``.

Its own classes build every architecture that writes text, on tensors without content. Their answers
go into ``oracle.json``, and what is read here of the same config.json beside them into
``oracle.md``; a default test compares again. Needs what ``run.py`` needs.
"""

import argparse
import json
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
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
OLDER_LISTS: Final = ("packages.txt",)
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
    kept = json.loads(ANSWERS.read_text()) if ANSWERS.exists() else {}
    said, older = kept.get("architectures", {}), kept.get("older", {})
    if not options.page_only:
        said = {**(said if options.only else {}), **_newest(options)}
    if options.older:
        older = {**older, options.older: _older(said, options)}
    ANSWERS.write_text(_text({"release": RELEASE, "architectures": said, "older": older}))
    PAGE.write_text(page(json.loads(ANSWERS.read_text())))
    print(f"{ANSWERS}, {PAGE}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cache", default=str(cache_folder() / "proof"))
    parser.add_argument("--sources", default="", help="folder of unpacked releases, by version")
    parser.add_argument("--only", nargs="*", help="architectures; the other answers stay")
    parser.add_argument("--page-only", action="store_true", help="compare with what was answered")
    parser.add_argument("--older", help="ask this release too, such as 0.20.0, of the same files")
    parser.add_argument("--places", help="where the parameters of each place of a model go")
    return parser.parse_args()


def _newest(options: argparse.Namespace) -> dict[str, Any]:
    given = {**BY_HAND, **{name: _known(name, of) for name, of in CATALOGUE.items()}}
    asks = {"by hand": given, "changes": CHANGES, "backends": BACKENDS, "only": options.only}
    said = _asked(RELEASE, asks, LISTS, options)
    if options.places:
        Path(options.places).write_text(json.dumps(said, indent=1))
    return {
        name: _kept(answer) for name, answer in said.items() if answer.get("not built") != ALONE
    }


def _older(newest: Mapping[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """Return what an earlier release builds of the same files; what it cannot is left out."""
    files = {name: _filled(said["config"]) for name, said in newest.items() if "config" in said}
    backends = dict.fromkeys(BACKENDS, "TRITON_ATTN")
    asks = {"by hand": files, "changes": {}, "backends": backends, "only": list(files)}
    said = _asked(options.older, asks, OLDER_LISTS, options)
    return {
        name: {"parameters": answer["parameters"], "caches": answer["caches"]}
        for name, answer in said.items()
        if "not built" not in answer
    }


def _filled(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with keys that have no effect here, and that classes ask for."""
    inner = {
        key: _filled(value) for key, value in config.items()
        if key == "text_config" and isinstance(value, dict)
    }  # fmt: skip
    return {"rms_norm_eps": 1e-6, "layer_norm_epsilon": 1e-5, "layer_norm_eps": 1e-5, **config,
            **inner}  # fmt: skip


def _asked(
    release: str, asks: Mapping[str, Any], lists: Sequence[str], options: argparse.Namespace
) -> dict[str, Any]:
    cache = Path(options.cache)
    sources = Path(options.sources) / release if options.sources else unpacked(release, cache)
    folders = [HERE, *(installed(HERE / each, cache) for each in lists)]
    with tempfile.TemporaryDirectory() as temporary:
        given, answers = Path(temporary) / "given.json", Path(temporary) / "answers.json"
        given.write_text(json.dumps(asks))
        subprocess.run(
            [vllm_cpu.ensure(), HERE / "oracle_engine.py", sources, given, answers],
            check=True, timeout=LIMIT_S, cwd=temporary,
            env={"PATH": "/usr/bin:/bin", "HOME": temporary,
                 "PYTHONPATH": ":".join(map(str, folders))},
        )  # fmt: skip
        return dict(json.loads(answers.read_text()))


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
    older = ",\n".join(
        f"{json.dumps(release)}: {_lines(said)}" for release, said in answers["older"].items()
    )
    newest = _lines(answers["architectures"])
    return (
        f'{{"release": "{answers["release"]}", "architectures": {newest},\n"older": {{{older}}}}}\n'
    )


def _lines(said: Mapping[str, Any]) -> str:
    lines = (f"{json.dumps(name)}: {json.dumps(each)}" for name, each in said.items())
    return "{\n" + ",\n".join(lines) + "\n}"


if __name__ == "__main__":
    main()
