"""Bounds of the numbers and lists in a ``config.json``, and how strictly its blocks are read."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Size = Annotated[int, Field(gt=0, le=10_000_000)]
SizeOrNone = Annotated[int, Field(ge=0, le=10_000_000)]
Tokens = Annotated[int, Field(gt=0, le=100_000_000)]
Heads = Annotated[int, Field(gt=0, le=10_000)]
Experts = Annotated[int, Field(ge=0, le=100_000)]
Layers = Annotated[int, Field(gt=0, le=2000)]
LayerIndex = Annotated[int, Field(ge=0, le=2000)]
ZerosAndOnes = Annotated[list[Annotated[int, Field(ge=0, le=1)]], Field(max_length=2000)]
Sizes = Annotated[list[Size], Field(max_length=2000)]
LayerIndices = Annotated[list[Layers], Field(max_length=2000)]
LayerList = Annotated[list[LayerIndex], Field(max_length=2000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
Names = Annotated[list[Annotated[str, Field(max_length=100)]], Field(max_length=2000)]
Word = Annotated[str, Field(max_length=100)]
Text = Annotated[str, Field(max_length=10_000)]
SizeByLayer = Size | Sizes
SizeOrAuto = Size | Literal["auto"]
ExpertsByLayer = Experts | Annotated[list[Experts], Field(max_length=2000)]
YesOrNo = bool
StateType = Literal["float32", "bfloat16", "float16"]


class Block(BaseModel):
    """A part of the file: what is read has the right type and bounds, the rest is ignored."""

    model_config = ConfigDict(
        extra="ignore",
        strict=True,
        frozen=True,
        allow_inf_nan=False,
        populate_by_name=True,
        defer_build=True,
    )
