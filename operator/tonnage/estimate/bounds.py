"""What figures of a stored state may be: types that msgspec checks when one is read."""

from typing import Annotated, Final

from msgspec import Meta

from tonnage.units import PETA

LARGEST: Final = PETA
"""No figure that we write comes near."""
LONGEST_NAME: Final = 64

Number = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Amount = Annotated[float, Meta(ge=0, le=LARGEST)]
Positive = Annotated[float, Meta(gt=0, le=LARGEST)]
Count = Annotated[int, Meta(ge=0, le=int(LARGEST))]
Name = Annotated[str, Meta(max_length=LONGEST_NAME)]
