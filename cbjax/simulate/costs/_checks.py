"""Start-up checks that cost models share."""

import math


def require_not_negative(**numbers: float) -> None:
    """These numbers are finite and at least 0, and one of them is above 0: time must pass.

    Raises:
        ValueError: naming the number, its value and the remedy.
    """
    for name, value in numbers.items():
        if not 0 <= value < math.inf:
            raise ValueError(f"{name} = {value!r}: give a finite number of at least 0")
    if not any(numbers.values()):
        raise ValueError(f"{', '.join(numbers)} are all 0: no time would pass; give one above 0")


def require_above_zero(**numbers: float) -> None:
    """These numbers are finite and above 0.

    Raises:
        ValueError: naming the number, its value and the remedy.
    """
    for name, value in numbers.items():
        if not 0 < value < math.inf:
            raise ValueError(f"{name} = {value!r}: give a finite number above 0")
