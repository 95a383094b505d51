"""How much the priors of the speed constants should weigh: what left-out groups say.

    python tests/bench/prior_weight.py --data serving_speed.csv --configs model_configs.yaml

For each model with rows enough: the mean error of every other model, source and GPU left out in
turn, by weight; and which weight that chooses for the model, which had no say in it.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import click
import numpy as np
from fit_speed import fit, fit_with_client, read_samples
from speed_formula import Sample, columns_of, formula

WEIGHTS = (0.25, 0.5, 1.0, 2.0, 4.0)
MIN_ROWS = 30
LARGEST = 0.5
"""In natural logarithms: an error beyond counts as this."""
Key = Callable[[Sample], str]
GROUPS: tuple[Key, ...] = (
    lambda each: each.case.row["model"],
    lambda each: each.case.row["source"].partition(":")[0],
    lambda each: each.case.row["gpu"],
)


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
def main(*, data: Path, configs: Path) -> None:
    """Print the errors by weight."""
    _, samples = fit_with_client(read_samples(data, configs))
    model = GROUPS[0]
    click.echo("left out, chosen, then mean error of the others by weight " + str(WEIGHTS))
    for name in sorted({model(each) for each in samples}):
        others = [each for each in samples if model(each) != name]
        if len(samples) - len(others) >= MIN_ROWS:
            errors = [left_out_error(others, weight) for weight in WEIGHTS]
            chosen = WEIGHTS[int(np.argmin(errors))]
            click.echo(f"{name} {chosen} " + " ".join(f"{each:.4f}" for each in errors))


def left_out_error(samples: Sequence[Sample], weight: float) -> float:
    """Return the mean error over groups that were each left out of the fit."""
    errors = []
    for key in GROUPS:
        for name in sorted({key(each) for each in samples}):
            inside = [each for each in samples if key(each) == name]
            outside = [each for each in samples if key(each) != name]
            if len(inside) >= MIN_ROWS and outside:
                errors.append(_errors(fit(outside, prior_weight=weight), inside))
    return float(np.mean(np.minimum(np.concatenate(errors), LARGEST)))


def _errors(values: dict[str, float], samples: Sequence[Sample]) -> "np.ndarray":
    columns = columns_of(samples)
    found: np.ndarray = np.abs(np.log(formula(values, columns) / columns["measured_s"]))
    return found


if __name__ == "__main__":
    main()
