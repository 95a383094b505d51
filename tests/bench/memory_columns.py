"""The columns of a table of start-up logs: which there must be, which may be, and what they mean.

A column that must be there and is not fails the whole table: every row would be refused for it.
What a column that may be left out says is looked for in the note, as older tables have it there.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import click

Row = Mapping[str, str]

NEEDED: Final = ("id", "vllm_version", "model", "gpu", "weight_quant", "kv_cache_dtype")
"""Without these nothing can be predicted."""
DEFAULTS: Final = {
    "tp": "", "pp": "1", "dp": "1", "n_gpus": "1", "engine": "", "source": "", "note": "",
    "gpu_memory_gib_reported": "", "max_model_len": "", "gpu_memory_utilization": "",
    "max_num_seqs": "", "max_num_batched_tokens": "", "enforce_eager": "", "block_size": "",
    "kv_pool_gib": "", "draft_layers": "", "prefix_caching": "",
    "measured_kv_tokens": "", "measured_gpu_blocks": "", "measured_max_concurrency": "",
    "measured_available_kv_gib": "", "measured_weights_gib": "", "measured_activation_gib": "",
    "measured_non_torch_gib": "",
}  # fmt: skip
"""What a blank or missing cell of the others means."""
IN_NOTES: Final = {
    "max_num_seqs": r"max[-_ ]num[-_ ]seqs[ =:]+(\d+)",
    "max_num_batched_tokens": r"max[-_ ]num[-_ ]batched[-_ ]tokens[ =:]+(\d+)",
    "gpu_memory_utilization": r"gpu[-_ ]memory[-_ ]utilization[ =:]+(0\.\d+)",
    "kv_pool_gib": r"kv[-_ ]cache[-_ ]memory[ =:]+([\d.]+) ?GiB",
}
"""What a note says in so many words, where the column is blank."""
WHOLE_NUMBERS: Final = (
    "tp", "pp", "dp", "n_gpus", "max_model_len", "max_num_seqs", "max_num_batched_tokens",
    "block_size",
)  # fmt: skip
DRAFT_HEAD: Final = re.compile(r"\bEAGLE\w*\b", re.I)
OWN_DRAFTS: Final = re.compile(r"\bMTP\b", re.I)
"""A head of another file that drafts tokens, with one layer; or the model's own layers for that."""
OWN: Final = "own"


def checked_rows(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Return the rows with all their cells.

    Raises:
        click.ClickException: a needed column is missing; it names all that are.
    """
    missing = [name for name in NEEDED if rows and name not in rows[0]]
    if missing:
        raise click.ClickException(f"the table has no column {', '.join(missing)}")
    return [whole_row(row) for row in rows]


def whole_row(row: Row) -> dict[str, str]:
    """Return a row with every cell filled: blank where it says nothing and nothing is meant."""
    given = {name: value.strip() for name, value in row.items() if value is not None}
    whole = {**DEFAULTS, **given}
    for name, pattern in IN_NOTES.items():
        found = re.search(pattern, whole["note"], re.I)
        whole[name] = whole[name] or (found[1] if found else "")
    for name in WHOLE_NUMBERS:
        whole[name] = _whole_number(whole[name])
    for name in ("pp", "dp", "n_gpus"):
        whole[name] = whole[name] or DEFAULTS[name]
    whole["tp"] = whole["tp"] or _rest(whole)
    whole["draft_layers"] = whole["draft_layers"] or _draft_layers(whole["note"])
    return whole


def _draft_layers(note: str) -> str:
    if DRAFT_HEAD.search(note):
        return "1"
    return OWN if OWN_DRAFTS.search(note) else "0"


def _whole_number(text: str) -> str:
    """Return a number as Python reads it: tables also say ``131,072`` and ``8192.0``."""
    plain = text.replace(",", "")
    return plain.removesuffix(".0") if re.fullmatch(r"\d+\.0", plain) else plain


def _rest(row: Row) -> str:
    return str(max(1, int(row["n_gpus"]) // (int(row["pp"]) * int(row["dp"]))))
