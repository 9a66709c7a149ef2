"""Check the header of a safetensors file before any of its tensors is read."""

import struct
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter, ValidationError

from bara_pyro.untrusted.files import bounded_json, check_regular, decoded
from bara_pyro.untrusted.schemas import Stored, Text

MOST_HEADER, MOST_TENSORS = 2**26, 1_000_000
LENGTH = struct.Struct("<Q")  # before the header
METADATA = "__metadata__"
Size = Annotated[int, Field(ge=0, le=2**63 - 1)]


class Header(Stored):
    """A header's entry for a tensor."""

    dtype: Text
    shape: Annotated[list[Size], Field(max_length=8)]
    data_offsets: Annotated[list[Size], Field(min_length=2, max_length=2)]


HEADERS = TypeAdapter(Annotated[dict[Text, Header], Field(max_length=MOST_TENSORS)])
TEXTS = TypeAdapter(dict[Text, str])


def check_tensors(path: Path) -> dict[str, Header]:
    """Return the header of a safetensors file after checking that all tensors lie within the file.

    safetensors itself checks that shapes and sizes agree.

    Raises:
        OSError, ValueError: the file cannot be read, is not regular, or its header is damaged.
    """
    size = check_regular(path).st_size
    with path.open("rb") as file:
        start = file.read(LENGTH.size)
        if len(start) < LENGTH.size:
            raise ValueError("it ends within its header")
        length = LENGTH.unpack(start)[0]
        if length > min(size - LENGTH.size, MOST_HEADER):
            raise ValueError(f"its header has {length:,} bytes, but the file {size:,}")
        content = bounded_json(decoded(file.read(length)))
    if not isinstance(content, dict):
        raise ValueError("its header is not a JSON object")  # noqa: TRY004 - the file is wrong
    try:
        TEXTS.validate_python(content.pop(METADATA, {}), strict=True)
        headers = HEADERS.validate_python(content)
    except ValidationError as error:
        raise ValueError(f"its header is damaged at {error.errors()[0]['loc']}") from error
    data = size - LENGTH.size - length
    for name, header in headers.items():
        if not 0 <= header.data_offsets[0] <= header.data_offsets[1] <= data:
            raise ValueError(f"{name[:60]!r} lies outside its {data:,} bytes")
    return headers
