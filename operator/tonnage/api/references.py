"""References to ConfigMaps and Secrets, always in the namespace of the object that names them."""

from typing import Annotated

from pydantic import Field

from tonnage.api.base import ApiModel, matches
from tonnage.api.fields import ResourceName

_Key = Annotated[str, Field(pattern="^[-._A-Za-z0-9]{1,253}$", max_length=253)]


class ConfigMapKey(ApiModel):
    """One key of a ConfigMap in the same namespace."""

    name: ResourceName
    """The name of the ConfigMap."""
    key: _Key
    """The key of the ConfigMap that has the text."""


class SecretKey(ApiModel):
    """One key of a Secret in the same namespace. It is named in the pod and never read here."""

    name: ResourceName
    """The name of the Secret."""
    key: _Key = "token"
    """The key of the Secret that has the token."""


class SecretKeyRef(ApiModel):
    """One key of a Secret in the same namespace. It is named in the pod and never read here."""

    name: ResourceName
    """The name of the Secret."""
    key: _Key
    """The key of the Secret."""


class PullSecret(ApiModel):
    """A Secret in the same namespace with which the kubelet pulls the image."""

    name: ResourceName
    """The name of the Secret, which has the type kubernetes.io/dockerconfigjson."""


_VARIABLE_PATTERN = "^[A-Za-z_][A-Za-z0-9_]{0,127}$"
RESERVED_VARIABLES = (
    "HOME|USER|PATH|ENV|BASH_ENV|HF_HOME|HF_TOKEN|GLIBC_TUNABLES|"
    "PYTHON.*|(LD|VLLM|CUDA|NVIDIA|KUBERNETES|PROMETHEUS|TONNAGE_QUEUE)_.*"
)
"""What we set, what decides capacity, metrics or the GPUs that are seen, and what runs code."""
_VARIABLE_MESSAGE = "must be a valid variable name, and not one that Tonnage or vLLM reserves"

VariableName = Annotated[
    str,
    Field(max_length=128),
    matches(_VARIABLE_PATTERN, _VARIABLE_MESSAGE, but=RESERVED_VARIABLES),
]


class SecretVariable(ApiModel):
    """An environment variable of the engine from a Secret, such as a key of an object store."""

    name: VariableName
    """The name of the variable. Names that Tonnage sets, such as HF_HOME, are refused."""
    secret_key_ref: SecretKeyRef
    """The Secret and key of the value. Tonnage names it in the pod and never reads it."""
