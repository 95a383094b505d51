"""Rows as columns of numbers and of names, for a formula over all of them at once."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Labels:
    """A column of names."""

    names: tuple[str, ...]
    codes: Any

    def chosen(self, value_of: Mapping[str, Any]) -> Any:
        return np.array([value_of[name] for name in self.names])[self.codes]

    def among(self, names: Sequence[str] | frozenset[str]) -> Any:
        return np.array([name in names for name in self.names])[self.codes]


@dataclass(frozen=True, kw_only=True)
class Columns:
    numbers: Mapping[str, Any]
    labels: Mapping[str, Labels]

    def __getitem__(self, name: str) -> Any:
        return self.numbers[name]
