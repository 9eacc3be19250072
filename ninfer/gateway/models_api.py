"""The one loaded model, as a list of models.

Capabilities let a client ask before it sends. Source: the serving contract, section 2.2.
"""

from typing import Any

from ninfer.errors import RequestError
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.generation import SamplingParams, shown
from ninfer.runtime import Engine


def models_list(engine: Engine) -> dict[str, Any]:
    """Body of the list."""
    return {"object": "list", "data": [model_object(engine)]}


def model_named(name: str, engine: Engine, settings: GatewaySettings) -> dict[str, Any]:
    """Body of one model.

    Raises:
        RequestError: ``model_not_found``.
    """
    if name not in {engine.model_id} | settings.model_aliases:
        raise RequestError(
            f"model {shown(name)} does not exist; this server has {engine.model_id}",
            code="model_not_found",
            field="model",
        )
    return model_object(engine)


def model_object(engine: Engine) -> dict[str, Any]:
    """What the model is and can do."""
    config, traits = engine.config, engine.frontend.traits
    speculative = config.speculative.value
    if config.draft_tokens:
        speculative = f"{speculative}-{config.draft_tokens}"
    return {
        "id": engine.model_id,
        "object": "model",
        "created": engine.artifact_time,
        "owned_by": "ninfer",
        "max_model_len": config.max_context,
        "context_native": engine.max_positions,
        "capabilities": {
            "vision": False,
            "thinking": engine.frontend.has_thinking,
            "reasoning_efforts": list(traits.reasoning_efforts),
            "tools": True,
            "structured_outputs": engine.frontend.has_structured_output,
            "logprobs": False,
        },
        "sampling_defaults": {
            "thinking": _preset_json(engine.frontend.sampling_defaults),
            "non_thinking": _preset_json(engine.plain_chat_preset),
        },
        "speculative": speculative,
        "kv_dtype": engine.kv_dtype.value,
    }


def _preset_json(preset: SamplingParams) -> dict[str, float]:
    return {
        "temperature": preset.temperature,
        "top_p": preset.top_p,
        "top_k": preset.top_k,
        "min_p": preset.min_p,
        "presence_penalty": preset.presence_penalty,
        "frequency_penalty": preset.frequency_penalty,
    }
