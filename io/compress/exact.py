"""Numbers as fractions, so that no bound and no limit is rounded to the wrong side."""

from __future__ import annotations

import math
import sys
from fractions import Fraction
from typing import Any

import numpy as np


def exact(number: Any) -> Fraction | None:
    """Returns a number of Python or numpy as a fraction; None if it is NaN or infinite."""
    if isinstance(number, (int, np.integer, np.bool_)):
        return Fraction(int(number))
    return Fraction(*number.as_integer_ratio()) if np.isfinite(number) else None


def rounded_down(number: Fraction) -> float:
    """Returns the largest float that is not above a number of 0 or more."""
    if number > Fraction(sys.float_info.max):
        return sys.float_info.max
    near = float(number)
    return near if Fraction(near) <= number else math.nextafter(near, 0.0)
