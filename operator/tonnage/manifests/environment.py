"""The environment of the engine: where it keeps things, and what Secrets hold for it."""

from collections.abc import Mapping

from tonnage.api.pods import Pods
from tonnage.api.references import SecretKey, SecretKeyRef
from tonnage.manifests.names import Manifest

NAME_OF_ANY_USER = "vllm"
"""torch asks for the user's name while it is imported, and fails where there is none: vLLM's images
have had a user 2000 since 0.22, and an id that is given need not be in any."""


def environment(pods: Pods, more: Mapping[str, str]) -> list[Manifest]:
    """Return the variables of the engine's container; ``more``: further plain ones.

    Sources:
        [vllm-source] vllm/envs.py VLLM_API_KEY; entrypoints/openai/server_utils.py
        AuthenticationMiddleware: paths that begin with /v1 ask for the key, no others.
    """
    plain = {
        "HOME": "/cache/home",
        "HF_HOME": "/cache/huggingface",
        "VLLM_CACHE_ROOT": "/cache/vllm",
        "USER": NAME_OF_ANY_USER,
        "LOGNAME": NAME_OF_ANY_USER,
        **more,
    }
    secrets = {
        "HF_TOKEN": pods.hugging_face_token_secret,
        "VLLM_API_KEY": pods.api_key_secret,
        **{each.name: each.secret_key_ref for each in pods.env},
    }
    return [
        *({"name": name, "value": value} for name, value in plain.items() if name not in secrets),
        *(_from_secret(name, source) for name, source in secrets.items() if source),
    ]


def _from_secret(name: str, source: SecretKey | SecretKeyRef) -> Manifest:
    reference = {"name": source.name, "key": source.key}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}
