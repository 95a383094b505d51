"""A sweep of splits that does not go through the search."""

from contextlib import suppress

from tonnage.sizing.errors import SizingError
from tonnage.sizing.parallelism.draft import splits_for
from tonnage.sizing.plan import size_with
from tonnage.sizing.search import cost_of


def swept_costs(request):
    """Yield what each split within a node costs, each searched by itself in full."""
    for split in splits_for(request, num_gpus=None):
        if split.num_gpus <= request.gpu.gpus_per_node:
            with suppress(SizingError):
                yield cost_of(size_with(request, split))
