"""What marks the parts of a model: the tables of ``parts.toml``."""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

PARTS: Final[Mapping[str, Any]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
