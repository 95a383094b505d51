"""How Kubernetes calls a ModelDeployment."""

from typing import Final

GROUP: Final = "tonnage.dev"
VERSION: Final = "v1alpha1"
KIND: Final = "ModelDeployment"
PLURAL: Final = "modeldeployments"
