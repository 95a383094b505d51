"""What prices hold for, in words: a line for those that hold for the same."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from tonnage.sizing.cost import GpuHour


def price_notes(hours: Iterable[tuple[str, GpuHour]]) -> Iterator[str]:
    """Yield provider, region, term and date, with the GPU classes and instances of these prices."""
    machines: dict[str, dict[str, None]] = {}
    for name, hour in hours:
        if hour.rent:
            common = replace(hour.rent, instance="", num_gpus=None).basis
            machines.setdefault(common, {})[f"{name} {hour.rent.machine}".rstrip()] = None
    yield from (f"prices: {common}; {', '.join(names)}" for common, names in machines.items())
