"""An engine to judge the product's by: vLLM V1's schedule, one sequence and one step at a time.

It shares no code with ``tonnage.engine``, and is written for reading: the same rules as a program
of a few hundred lines that walks over every sequence in every step. The caller says how long a
step takes, by what each rank works on in it. Left out: sharing of prefix blocks between
sequences, asynchronous scheduling (which hides the scheduler's time and changes no count here).
"""

from reference_engine.core import Accepted, Batch, Engine, StepResult
from reference_engine.group import EngineGroup, StepTime
from reference_engine.limits import BlockTable, EngineLimits, Request
from reference_engine.simulation import Served, Server, simulate

__all__ = [
    "Accepted",
    "Batch",
    "BlockTable",
    "Engine",
    "EngineGroup",
    "EngineLimits",
    "Request",
    "Served",
    "Server",
    "StepResult",
    "StepTime",
    "simulate",
]
