"""The server's own thinking budget, for requests that name none.

Source: the serving contract, sections 4 and 5.
"""

from dataclasses import replace

from ninfer.errors import RequestError
from ninfer.frontend.frontend import OutputOptions, PreparedInput
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.runtime import Engine


def with_default_budget(
    output: OutputOptions,
    prepared: PreparedInput,
    engine: Engine,
    settings: GatewaySettings,
    max_tokens: int,
) -> OutputOptions:
    """Fill in the default budget where it fits; nobody is refused for what they did not ask.

    Raises:
        ContextLengthExceeded: the prompt alone is too long.
    """
    budget = settings.default_thinking_budget
    if output.thinking_budget is not None or budget is None:
        return output
    room = engine.frontend.output_room(prepared.prompt, max_tokens, engine.config.max_context)
    try:
        engine.frontend.check_thinking_budget(prepared, budget, room)
    except RequestError:
        return output
    return replace(output, thinking_budget=budget)
