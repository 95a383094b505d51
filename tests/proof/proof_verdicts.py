"""From what was read of a release to a verdict on what is rendered for it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from proof_images import Image
from proof_kernels import HALVES, Kernels

Found = Mapping[str, Any]
SERVE: Final = ["vllm", "serve"]
NAMES_OF_USERS: Final = ("LOGNAME", "USER", "LNAME", "USERNAME")
"""What ``getpass.getuser`` looks at before it asks for the entry of the user's id."""


@dataclass(frozen=True, kw_only=True)
class Cache:
    """What decides whether a cache can be written and read."""

    name: str
    """As the arguments or, where a release resolves it, its configuration says."""
    model_dtype: str
    kind: str
    """Of the attention: dense, mla, sparse mla, or another whose kernels were not read."""


def cache_problem(
    cache: Cache, kernels: Kernels, backends: Mapping[str, Mapping[str, Sequence[str]]]
) -> str | None:
    """Say why a release cannot keep such a cache; None: it can."""
    if cache.name not in kernels.names:
        return f"the kernels that write the cache do not know {cache.name}"
    is_plain = kernels.names[cache.name] == "as the model"
    if is_plain and cache.name in HALVES and cache.name != cache.model_dtype:
        return f"the cache is written in {cache.model_dtype} and read as {cache.name}"
    lists = backends.get(cache.kind, {})
    if lists and not any(cache.name in types for types in lists.values()):
        return f"no backend of {cache.kind} attention takes {cache.name}"
    return None


def image_problem(container: Found, image: Image) -> str | None:
    """Say why the container does not serve what it should from this image; None: it does."""
    run = container["command"] or image.entrypoint
    if run != SERVE:
        return f"{' '.join(run)} takes the model as --model, and not as its first argument"
    user = container["user"]
    names = {**image.names, **container["env"]}
    is_known = user in {0, *image.user_ids}
    if not is_known and not any(names.get(each) for each in NAMES_OF_USERS):
        who = "the platform's user" if user is None else f"user {user}"
        return f"{who} has no name in the image, and neither USER nor LOGNAME is set"
    return None


def attention_kind(config: Found) -> str:
    """Return whose kernels and backends keep the cache of a model."""
    text = config.get("text_config", config)
    if config["model_type"] == "deepseek_v4":
        return "compressed"
    if "kv_lora_rank" not in text:
        return "dense"
    return "sparse mla" if "index_topk" in text else "mla"


def argument(arguments: Sequence[str], flag: str, default: str) -> str:
    """Return the value of a flag.

    >>> argument(["--dtype", "float16"], "--dtype", "auto")
    'float16'
    """
    return arguments[arguments.index(flag) + 1] if flag in arguments else default


def cache_of(container: Found, config: Found, checks: Found, renamed: Sequence[str]) -> Cache:
    """Return the cache that a release makes of these arguments.

    ``renamed``: architectures for which the release takes ``bfloat16`` as ``auto``.
    """
    text = config.get("text_config", config)
    stored = config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype") or "bfloat16"
    asked = argument(container["args"], "--dtype", "auto")
    written = argument(container["args"], "--kv-cache-dtype", "auto")
    if written == "bfloat16" and set(config.get("architectures", ())) & set(renamed):
        written = "auto"
    return Cache(
        name=checks.get("cache dtype") or written,
        model_dtype=checks.get("model dtype") or (stored if asked == "auto" else asked),
        kind=attention_kind(config),
    )
