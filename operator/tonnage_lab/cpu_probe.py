"""What one core of this machine can do: ``cpu_probe.py CORE BUFFER_BYTES ROWS`` prints it as JSON.

A program for the Python that vLLM is installed for, so that the products are those of the library
that the engine computes with. Each figure is the best of several runs, in CPU time: what else runs
on the core takes none of that, and what else uses the memory can only slow a run.
"""

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

ROUNDS: Final = 15


def best_s(works: Mapping[str, Callable[[], object]]) -> dict[str, float]:
    """Return the shortest CPU time that each took, by turns: a busy moment spoils a run of each.

    The first round does not count.
    """
    times_s: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(1 + ROUNDS):
        for name, work in works.items():
            began_s = time.process_time()
            work()
            times_s[name].append(time.process_time() - began_s)
    return {name: min(found[1:]) for name, found in times_s.items()}


def measure(torch: Any, *, buffer_bytes: int, rows: int) -> dict[str, float]:
    """Return bytes/s read and copied, and flop/s of a bf16 product of square matrices.

    Reading is the faster of a sum and a product with a vector: which of the two is held up by the
    core rather than by memory depends on the core.
    """
    element_bytes = 4
    columns = buffer_bytes // element_bytes // rows
    buffer, vector = torch.ones(rows, columns), torch.ones(columns)
    target = torch.empty_like(buffer)
    square = torch.ones(rows, rows, dtype=torch.bfloat16)
    found_s = best_s(
        {
            "sum": buffer.sum,
            "product with a vector": lambda: torch.mv(buffer, vector),
            "copy": lambda: target.copy_(buffer),
            "product of matrices": lambda: torch.mm(square, square),
        }
    )
    num_bytes = rows * columns * element_bytes
    return {
        "read_bytes_per_s": num_bytes / min(found_s["sum"], found_s["product with a vector"]),
        "copy_bytes_per_s": num_bytes / found_s["copy"],
        "bf16_flop_per_s": 2 * rows**3 / found_s["product of matrices"],
    }


def main() -> int:
    core, buffer_bytes, rows = map(int, sys.argv[1:])
    os.sched_setaffinity(0, {core})
    os.environ["OMP_NUM_THREADS"] = "1"
    torch = importlib.import_module("torch")
    torch.set_num_threads(1)
    sys.stdout.write(json.dumps(measure(torch, buffer_bytes=buffer_bytes, rows=rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
