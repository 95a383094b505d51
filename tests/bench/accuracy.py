"""Write the page of how accurate predicted speeds are.

    python tests/bench/accuracy.py --data serving_speed.csv --configs model_configs.yaml

Median, 90th percentile and bias by model, GPU, engine, source, batch and context; in-sample and
with each model, format, GPU, source and time left out of the fit; beside a naive
roofline on the same rows. Ranges, and what the rows cannot tell. Other tools: ``other_tools.md``.
"""

from pathlib import Path

import click
import yaml
from measured import write_page
from speed import answers, read_rows
from speed_report import report

PAGE = Path(__file__).with_name("speed.md")


@click.command()
@click.option("--data", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--configs", type=click.Path(exists=True, path_type=Path), required=True)
@click.option("--page", type=click.Path(path_type=Path), default=PAGE, show_default=True)
def main(*, data: Path, configs: Path, page: Path) -> None:
    """Write the page anew."""
    rows = read_rows(data)
    click.echo(f"predicting {len(rows)} rows; fitting without each model, format ...")
    found = answers(rows, yaml.safe_load(configs.read_text()))
    write_page(page, report(data, configs, rows, found))
    click.echo(f"wrote {page}")


if __name__ == "__main__":
    main()
