import math

import pytest

from ninfer.errors import RequestError
from ninfer.generation import SamplingParams, number_text, shown


@pytest.mark.parametrize(
    ("name", "value", "code"),
    [
        ("temperature", "0.7", "invalid_type"),
        ("temperature", True, "invalid_type"),
        ("temperature", -0.1, "invalid_value"),
        ("temperature", 2.01, "invalid_value"),
        ("temperature", math.nan, "invalid_value"),
        ("temperature", math.inf, "invalid_value"),
        ("top_p", 1.0001, "invalid_value"),
        ("min_p", -0.5, "invalid_value"),
        ("top_k", -2, "invalid_value"),
        ("top_k", 3.5, "invalid_type"),
        ("presence_penalty", 2.5, "invalid_value"),
        ("frequency_penalty", None, "invalid_type"),
        ("seed", 1 << 63, "invalid_value"),
        ("seed", 1.0, "invalid_type"),
    ],
)
def test_sampling_value_out_of_its_range_is_refused(name: str, value: object, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(**{name: value})  # type: ignore[arg-type] # wrong on purpose

    assert (caught.value.code, caught.value.field) == (code, name)


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 0), ("temperature", 2), ("top_p", 0), ("seed", -1), ("seed", -(1 << 63))],
)
def test_sampling_value_at_the_edge_of_its_range_is_kept(name: str, value: int) -> None:
    assert getattr(SamplingParams(**{name: value}), name) == value


def test_minus_one_and_zero_are_the_same_top_k() -> None:
    assert SamplingParams(top_k=-1) == SamplingParams(top_k=0)


def test_tiny_temperature_is_greedy() -> None:
    assert SamplingParams(temperature=1e-30).is_greedy


def test_shown_value_is_short_and_printable() -> None:
    text = shown("\x00\n" + "x" * 500)

    assert len(text) <= 64
    assert text.isprintable()


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (100_000_000, "100000000"),
        (1e8, "100000000"),
        (2147483647.0, "2147483647"),
        (1234567.5, "1234567.5"),
        (0.001, "0.001"),
        (-2.0, "-2"),
        (float("inf"), "inf"),
        (float("nan"), "nan"),
        (1e300, "1e+300"),
    ],
)
def test_a_number_in_a_message_keeps_its_digits(value: float, text: str) -> None:
    assert number_text(value) == text
