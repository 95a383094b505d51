"""What is refused of a load test's file; apart, since a plan that reads none needs no more."""


class CalibrationFileError(ValueError):
    """The text is no calibration, or one for something else; the message says of what."""
