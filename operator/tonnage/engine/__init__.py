"""A step-level model of a continuous-batching engine, as vLLM V1 schedules.

Pure: the caller owns the clock and says, through a ``StepTime``, how long a step takes.
The lab's stand-in runs it in real time, ``simulate`` runs it as fast as it can.
"""

from tonnage.engine.core import Batch, Counters, Engine, StepResult, StepTime
from tonnage.engine.group import EngineGroup, GroupStepTime
from tonnage.engine.limits import EngineLimits, LimitsError, Request, RequestError
from tonnage.engine.simulation import Completion, simulate

__all__ = [
    "Batch",
    "Completion",
    "Counters",
    "Engine",
    "EngineGroup",
    "EngineLimits",
    "GroupStepTime",
    "LimitsError",
    "Request",
    "RequestError",
    "StepResult",
    "StepTime",
    "simulate",
]
