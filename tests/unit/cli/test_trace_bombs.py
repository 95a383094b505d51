"""Small files that mean much: ``tonnage replay`` refuses them in little memory."""

import subprocess
import sys
import zlib

import pytest

from cli_builders import SMALL
from tonnage.units import KIB, MIB

pytestmark = pytest.mark.thorough

MOST_BYTES = 256 * MIB
LINE = b"x" * 63 + b"\n"
HEAD = b"arrival_s,prompt_tokens,output_tokens\n"
MEASURED = """
import resource, subprocess, sys
ended = subprocess.run([sys.executable, "-m", "tonnage", *sys.argv[1:]]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(ended)
"""
"""A program of its own: a process that is forked off the tests counts what they take."""


def packed(path, *parts):
    """Write each part so many times into a packed file."""
    pack = zlib.compressobj(9, wbits=31)
    with path.open("wb") as file:
        for part, times in parts:
            for _ in range(times):
                file.write(pack.compress(part))
        file.write(pack.flush())


def parquet_of_many_rows(path, *, num_rows=200_000_000):
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    in_group = num_rows // 100
    values = pyarrow.repeat(1, in_group)
    table = pyarrow.table(dict.fromkeys(HEAD.decode().strip().split(","), values))
    with parquet.ParquetWriter(path, table.schema) as writer:
        for _ in range(100):
            writer.write_table(table, row_group_size=in_group)


BOMBS = {
    "line.csv.gz": lambda path: packed(path, (HEAD, 1), (b"1" * MIB, KIB)),
    "line.jsonl.gz": lambda path: packed(path, (b'{"arrival_s": "', 1), (b"1" * MIB, KIB)),
    "rows.csv.gz": lambda path: packed(path, (HEAD, 1), (100_000 * b"1,2,3\n", 330)),
    "field.csv.gz": lambda path: packed(path, (HEAD + b'1,"', 1), (KIB * LINE, 16 * KIB)),
    "rows.parquet": parquet_of_many_rows,
}  # fmt: skip
SAID = {
    "line.csv.gz": "line.csv.gz:2: longer than 1.0 MiB",
    "line.jsonl.gz": "line.jsonl.gz:1: longer than 1.0 MiB",
    "rows.csv.gz": "more than 20,000,000 lines",
    "field.csv.gz": "field larger than field limit",
    "rows.parquet": "200,000,000 rows, more than 20,000,000",
}


@pytest.mark.parametrize("name", BOMBS)
def test_a_small_file_that_means_much_is_refused_in_little_memory(tmp_path, name):
    path, manifest = tmp_path / name, tmp_path / "small.yaml"
    BOMBS[name](path)
    manifest.write_text(SMALL)
    assert path.stat().st_size < 4 * MIB

    ended = subprocess.run(  # noqa: S603 (this program)
        [sys.executable, "-c", MEASURED, "replay", str(path), "-f", str(manifest)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    *_, said, peak_kib = ended.stderr.splitlines()
    assert ended.returncode == 3
    assert SAID[name] in said
    assert int(peak_kib) * KIB < MOST_BYTES
