"""One answer of Prometheus: series by series, only what is read of it takes memory.

msgspec validates the document as it decodes it and hands each series on as soon as it is read, so
that beside the body there is never a tree of it. Labels that were read before are not decoded
again: the same bytes are the same series. What no Prometheus writes refuses the answer.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from math import nan
from typing import Any, Final, Literal

import msgspec
from msgspec import Raw, defstruct

from tonnage.cluster.errors import PrometheusError
from tonnage.estimate.fleet_scrapes import Answered, FleetScrapes, Samples

MAX_NUMBER_CHARACTERS: Final = 512
"""Of a number: VictoriaMetrics writes 1e300 in 301 digits."""
Scalar = str | float | bool | None
"""What may be in the place of a time or of a value: nothing that could be large."""
Take = Callable[[bytes, Any], None]
TAKERS: Final[list[Take]] = []
ONE_AT_A_TIME: Final = threading.Lock()
LABELS: Final = msgspec.json.Decoder(dict[str, str])


def _number(part: Scalar) -> float:
    """Return a figure as it is written; NaN where that is no number."""
    if isinstance(part, str) and len(part) > MAX_NUMBER_CHARACTERS:
        return nan
    try:
        return float(part)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return nan


def _numbers(samples: Sequence[tuple[Scalar, Scalar]]) -> Samples:
    read = ((_number(at_s), _number(value)) for at_s, value in samples)
    return [(at_s, value) for at_s, value in read if abs(at_s) < float("inf")]


def _decoder(sample: Any) -> Any:
    """Return what decodes a document: each series goes to the last taker and is emptied.

    Made once: classes are rings of references, which nobody collects.
    """

    def hand_on(series: Any) -> None:
        TAKERS[-1](bytes(series.metric), series.values)
        series.metric = series.values = None

    series = defstruct(
        "series",
        [("metric", Raw), ("values", list[sample])],
        namespace={"__post_init__": hand_on},
        gc=False,
    )
    of_series: Any = list[series]  # type: ignore[valid-type]
    data = defstruct("data", [("resultType", Literal["matrix"]), ("result", of_series)])
    document = defstruct(
        "document",
        [
            ("status", Literal["success"]),
            ("data", data),
            ("isPartial", bool | None, None),
            ("warnings", Raw, Raw(b"[]")),
        ],
    )
    return msgspec.json.Decoder(document, strict=False)


FIGURES: Final = _decoder(tuple[float, float])
"""Of samples as Prometheus writes them, read at once."""
WHATEVER: Final = _decoder(tuple[Scalar, Scalar])
"""Of samples with something in the place of a figure that is none."""


class AnswerReader:
    """Takes in an answer piece by piece, and reads it when it has ended."""

    def __init__(self, scrapes: FleetScrapes, *, max_series: int) -> None:
        self._scrapes, self._max_series = scrapes, max_series
        self._body, self._num_series = bytearray(), 0
        self.answered = Answered()

    def feed(self, piece: bytes) -> None:
        """Take in the next piece."""
        self._body += piece

    def end(self) -> bool:
        """Read the answer; return whether it is partial.

        Raises:
            PrometheusError: it broke off, was no matrix, or has too many series.
        """
        try:
            return self._read(FIGURES, self._take)
        except (ValueError, RecursionError):
            pass  # a figure that is none, perhaps
        try:
            return self._read(WHATEVER, lambda metric, values: self._take(metric, _numbers(values)))
        except (ValueError, RecursionError) as error:
            raise bad_answer() from error

    def _read(self, decoder: Any, take: Take) -> bool:
        self.answered, self._num_series = Answered(), 0
        with ONE_AT_A_TIME:
            TAKERS.append(take)
            try:
                document = decoder.decode(self._body)
            finally:
                TAKERS.pop()
        return bool(document.isPartial) or bytes(document.warnings).strip() not in {b"[]", b"null"}

    def _take(self, metric: bytes, samples: Samples) -> None:
        self._num_series += 1
        if self._num_series > self._max_series:
            message = f"an answer has more than {self._max_series} series"
            raise PrometheusError(message, reason="QueryTooLarge")

        def labels() -> Mapping[str, str]:
            # VictoriaMetrics writes labels as they were scraped: one refuses no other series.
            return LABELS.decode(metric.decode(errors="replace"))

        self._scrapes.take(self.answered, hash(metric), labels, samples)


def bad_answer() -> PrometheusError:
    message = "Prometheus answered with something other than a query result"
    return PrometheusError(message, reason="BadAnswer")
