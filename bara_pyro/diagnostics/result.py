"""What the result of a diagnostic is: typed, unchanging, and the same after a journey through JSON."""

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
    """Base of all results: fields are set once, unknown ones are refused, infinities and NaN become null."""

    model_config = ConfigDict(frozen=True, extra="forbid", ser_json_inf_nan="null")
