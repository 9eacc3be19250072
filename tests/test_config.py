"""Start-up options that do not go together, and what is said about them."""

from typing import Any

import pytest

from ninfer.config import EngineConfig, Purpose, SpeculativeBackend
from ninfer.errors import ConfigurationError


@pytest.mark.parametrize(
    "backend", [kind for kind in SpeculativeBackend if kind is not SpeculativeBackend.NONE]
)
def test_backend_alone_is_told_what_is_missing_and_that_it_would_not_help(
    backend: SpeculativeBackend,
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EngineConfig(speculative=backend)

    assert caught.value.field == "speculative"
    assert f"speculative is {backend.value}, which needs draft_tokens, 1.." in str(caught.value)
    assert "not available yet" in str(caught.value)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"draft_tokens": 2}, "draft_tokens"),
        ({"speculative": SpeculativeBackend.MTP, "draft_tokens": 6}, "draft_tokens"),
        ({"speculative": SpeculativeBackend.MTP, "draft_tokens": -1}, "draft_tokens"),
        ({"device_state_slots": -1}, "device_state_slots"),
        ({"prefill_chunk": 100}, "prefill_chunk"),
        ({"kv_capacity": 64}, "kv_capacity"),
        ({"max_concurrency": True}, "max_concurrency"),
        ({"max_concurrency": 9}, "max_concurrency"),
        ({"purpose": Purpose.CAUSAL_SCORING, "max_concurrency": 2}, "max_concurrency"),
    ],
)
def test_refusal_names_the_field(options: dict[str, Any], field: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        EngineConfig(**options)

    assert caught.value.field == field
    assert str(caught.value).startswith(f"{field} is ")
