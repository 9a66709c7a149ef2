"""Inspect a fitted model: its calibration, its gates, and the quality of its posterior.

Results are typed, immutable, and unchanged by a round trip through JSON.
"""

import math
from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, WithJsonSchema

Number = Annotated[
    float,
    BeforeValidator(lambda value: math.nan if value is None else value),
    WithJsonSchema({"anyOf": [{"type": "number"}, {"type": "null"}]}),
]
"""A number that may be unknown: NaN here, null in JSON."""


class Result(BaseModel):
    """Immutable base class of results: rejects unknown fields, and stores infinities and NaN as null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")
