"""The ways in which a sizing request is understood and its answer is no."""


class SizingError(Exception):
    """Base class. The message carries the numbers; the class name becomes a condition's reason."""


class InvalidParallelismError(SizingError):
    """The engine refuses this split of the model over GPUs."""


class DoesNotFitError(SizingError):
    """Weights and overheads leave too little memory for the KV cache of one whole request."""


class WillNotStartError(SizingError):
    """The engine refuses flags that are given, once it has loaded."""


class SLOInfeasibleError(SizingError):
    """One request alone on an idle replica already misses the SLO: replicas do not help."""

    def __init__(self, message: str, *, excess: float = 1.0, is_ttft: bool = False) -> None:
        super().__init__(message)
        self.excess, self.is_ttft = excess, is_ttft
        """What it takes over the target, and whether that is one of TTFT."""


class SeveralNodesError(SizingError):
    """No replica within a node serves, and what one over several nodes serves was not asked."""


class ContextTooLongError(SizingError):
    """The maximum length exceeds the positions that the model was made for."""


class InvalidSpeculationError(SizingError):
    """The engine cannot draft tokens in this way for this model."""


class InvalidAdaptersError(SizingError):
    """The engine has no adapters for this, or it is not known what they take."""


class InvalidKvCacheError(SizingError):
    """The engine does not keep the cache of this model in the format that is asked for."""


class SearchAbandonedError(Exception):
    """The time for searches is spent: no answer yet, and no is none either. Ask again.

    Raised by what a caller passes as ``on_search``; the search goes on where it stopped.
    """
