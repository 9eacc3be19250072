"""Tokens of a text or of a rendered conversation, and back; no I/O.

A conversation goes through exactly the path of chat completions, so that its count is the prompt
tokens a real request would report. Source: the serving contract, section 2.3.
"""

import base64
from typing import Any

from ninfer.errors import RequestError
from ninfer.gateway.gateway_settings import GatewaySettings
from ninfer.gateway.json_fields import Fields
from ninfer.gateway.openai_api import read_conversation, read_prompt_options
from ninfer.gateway.openai_fields import check_model, settle_unknown
from ninfer.gateway.request_context import RequestContext
from ninfer.runtime import Engine

Json = dict[str, Any]


def tokenize(
    body: Json, engine: Engine, context: RequestContext, settings: GatewaySettings
) -> Json:
    """Answer a tokenize body.

    Raises:
        RequestError: with the path of the offending field.
    """
    fields = Fields(body)
    check_model(fields, engine.model_id, settings)
    fields.boolean("add_special")  # These models add no tokens of their own around a text.
    parses_special = bool(fields.boolean("parse_special"))
    has_pieces = bool(fields.boolean("with_pieces"))
    returns_prompt = bool(fields.boolean("return_prompt"))
    text = fields.text("text")
    if (text is None) is not fields.has("messages"):
        raise RequestError(
            "exactly one of text and messages is needed",
            code="missing_field" if text is None else "conflicting_parameters",
            field="text",
        )
    tokenizer = engine.frontend.tokenizer
    if text is not None:
        token_ids = tokenizer.encode(text, parse_special=parses_special)
        prompt = text
    else:
        options = read_prompt_options(fields, settings)
        prepared = engine.frontend.prepare(read_conversation(fields, context), options)
        token_ids, prompt = list(prepared.prompt.token_ids), prepared.text or ""
    settle_unknown(fields, context, is_strict=settings.is_strict)
    reply: Json = {
        "tokens": token_ids,
        "count": len(token_ids),
        "max_model_len": engine.config.max_context,
    }
    if has_pieces:
        pieces = [(token_id, tokenizer.piece(token_id)) for token_id in token_ids]
        reply["pieces"] = [
            {"id": token_id, "text": piece.decode("utf-8", "replace"), "bytes": list(piece)}
            for token_id, piece in pieces
        ]
    if returns_prompt:
        reply["prompt"] = prompt
    return reply


def detokenize(
    body: Json, engine: Engine, context: RequestContext, settings: GatewaySettings
) -> Json:
    """Answer a detokenize body.

    Raises:
        RequestError: ``invalid_token_id`` and others, with the path of the field.
    """
    fields = Fields(body)
    check_model(fields, engine.model_id, settings)
    tokens = fields.items("tokens")
    if tokens is None:
        raise fields.missing("tokens")
    data = engine.frontend.tokenizer.decode(tokens)
    settle_unknown(fields, context, is_strict=settings.is_strict)
    encoded = base64.b64encode(data).decode("ascii")
    return {"text": data.decode("utf-8", "replace"), "bytes_b64": encoded}
