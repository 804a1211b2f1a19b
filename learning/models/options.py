"""What options of built-in models may be: they come from the wire."""

from typing import Annotated

from pydantic import BeforeValidator, Field

from coinflower.protocol.strict import Listed

Shape = tuple[int, ...]
Width = Annotated[int, Field(ge=1, le=65_536)]
Depth = Annotated[int, Field(ge=1, le=64)]
Words = Annotated[int, Field(ge=2, le=10_000_000)]


def _as_list(widths: object) -> object:
    return [widths] if isinstance(widths, int) else widths


Widths = Annotated[Listed[Width], BeforeValidator(_as_list), Field(min_length=1, max_length=64)]
"""One width or several."""
