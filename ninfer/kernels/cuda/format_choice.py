"""A number for each format of a launch, chosen where the code runs."""

from collections.abc import Sequence
from typing import Any

from numba import int32

from ninfer.cuda.device_code import device_function

Index = Any


def make_choice(values: Sequence[int]) -> Any:
    """The value of a format, by its number in the launch."""
    head = values[0]
    if len(set(values)) == 1:

        @device_function
        def only(format: Index) -> Any:
            return int32(head)

        return only
    others = make_choice(values[1:])

    @device_function
    def either(format: Index) -> Any:
        value = int32(head)
        if format > int32(0):
            value = others(int32(format - int32(1)))
        return value

    return either
