"""Whose row it is: a number for every id, the same one in whatever file and type it is stored."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from coinflower.accounting.errors import UserError
from coinflower.learning.data.rows import Rows
from coinflower.learning.data.tables.schema import normal

# Programs that keep a column with blanks as floats write 17 as 17.0, and large numbers as 1e+15.
_NUMBER = re.compile(r"[+-]?\d{1,40}(\.\d{0,40})?(e\+?\d{1,2})?", re.IGNORECASE | re.ASCII)
_NOBODY = frozenset({"", "nan", "none", "null", "<na>", "nat"})
_LEAST, _LARGEST = -(2**63), 2**63 - 1


def numbers_of(ids: Iterable[str]) -> tuple[Rows, NDArray[np.bool_]]:
    """Return the number of each person, and which ids are nobody's: blank, or a word for that.

    Whole numbers stand for themselves, however they are spelt; other texts become 64 bits of a
    hash. Should two ids ever share theirs, these persons are protected as one: nobody is protected
    less.
    """
    texts = list(map(normal, ids))
    numbers = np.fromiter(map(_number_of, texts), dtype=np.int64, count=len(texts))
    nobody = np.fromiter((one.lower() in _NOBODY for one in texts), dtype=bool, count=len(texts))
    return numbers, nobody


def persons_of(ids: NDArray[Any]) -> tuple[Rows, NDArray[np.bool_]]:
    """Return the same for an array of ids, one per row.

    Raises:
        UserError: They are neither integers nor texts, or not one per row.
    """
    if ids.ndim == 1 and ids.dtype.kind == "O":  # such as a column of pandas'
        ids = np.array(["" if _is_missing(one) else _text_of(one) for one in ids], "U")
    if ids.ndim != 1 or ids.dtype.kind not in "iuUS":
        raise UserError(
            f"persons of shape {ids.shape} and type {ids.dtype} must be a vector of integers or "
            "texts"
        )
    different, row = np.unique(ids, return_inverse=True)
    numbers, nobody = numbers_of(map(_text_of, different))
    return numbers[row], nobody[row]


def _number_of(text: str) -> int:
    if _NUMBER.fullmatch(text):
        number = Decimal(text)
        if number == number.to_integral_value() and _LEAST <= number <= _LARGEST:
            return int(number)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "big", signed=True)


def _text_of(value: object) -> str:
    return value.decode("utf-8", "surrogateescape") if isinstance(value, bytes) else str(value)


def _is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float | np.floating) and bool(np.isnan(value)))
