"""The files that travel inside an artifact unchanged: configs, tokenizer, template.

Source: artifact contract, sections 9, 10 and 14.1. A file that differs from the published one is a
note unless the caller is strict, so that fine-tunes convert.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ninfer.convert.checkpoint import SourceCheckpoint
from ninfer.errors import CheckpointError
from ninfer.models.package import ModelPackage
from ninfer.models.qwen_hybrid.inventory import (
    DRAFT_CONFIG,
    MEDIA_RESOURCES,
    MODEL_CONFIG,
    TEXT_RESOURCES,
)
from ninfer.models.qwen_hybrid.tokenizer_range import (
    added_tokens,
    addressable_tokens,
    parse_object,
)

_FRONTEND: Final = "frontend/"
_TOKENIZER: Final = "tokenizer.json"
_TOKENIZER_CONFIG: Final = "tokenizer_config.json"
_TEMPLATE: Final = "chat_template.jinja"
_GENERATION: Final = "generation_config.json"
_END_OF_TURN: Final = "<|im_end|>"
_END_OF_TEXT: Final = "<|endoftext|>"

# First digits of the published files' SHA-256.
_PUBLISHED_HASHES: Final[Mapping[str, str]] = {
    "tokenizer.json": "5f9e4d49",
    "tokenizer_config.json": "5186f0de",
    "chat_template.jinja": "e84f32a2",
    "generation_config.json": "e70c136c",
    "preprocessor_config.json": "27225450",
    "video_preprocessor_config.json": "7768af27",
}
_PUBLISHED_FOR: Final = ("qwen3.6-27b", "qwen3.6-35b-a3b")


@dataclass(frozen=True, slots=True)
class ResourceSet:
    """Contents by object name in the writer's order, and what they say.

    Attributes:
        contents: bytes of every resource.
        addressable_tokens: ids the tokenizer addresses.
        forced_ids: special added tokens.
        notes: what was made up or differs from the published files.
    """

    contents: Mapping[str, bytes]
    addressable_tokens: int
    forced_ids: tuple[int, ...]
    notes: tuple[str, ...]


def collect_resources(
    package: ModelPackage,
    checkpoint: SourceCheckpoint,
    draft: SourceCheckpoint | None,
    *,
    is_strict: bool,
) -> ResourceSet:
    """Read and check every resource of a checkpoint.

    Raises:
        CheckpointError: a file is missing, empty or unusable, or ``is_strict`` and it differs.
        OSError: a file cannot be read.
    """
    notes: list[str] = []
    contents: dict[str, bytes] = {}
    if package.geometry is None:
        contents[MODEL_CONFIG] = checkpoint.config_bytes
        if draft is not None:
            contents[DRAFT_CONFIG] = draft.config_bytes
    for name in (*TEXT_RESOURCES, *MEDIA_RESOURCES):
        file_name = name.removeprefix(_FRONTEND)
        is_optional = package.is_media_optional and name in MEDIA_RESOURCES
        content = _content(checkpoint, file_name, is_optional, notes)
        if content is not None:
            _check_content(file_name, content)
            contents[name] = content
    if package.model_id in _PUBLISHED_FOR:
        _compare_hashes(contents, notes, is_strict)
    tokenizer_config = contents[f"{_FRONTEND}{_TOKENIZER_CONFIG}"]
    added = added_tokens(tokenizer_config)
    return ResourceSet(
        contents=contents,
        addressable_tokens=addressable_tokens(
            contents[f"{_FRONTEND}{_TOKENIZER}"], tokenizer_config
        ),
        forced_ids=tuple(i for i, token in added.items() if token.is_special),
        notes=tuple(notes),
    )


def _content(
    checkpoint: SourceCheckpoint, name: str, is_optional: bool, notes: list[str]
) -> bytes | None:
    if checkpoint.find_file(name) is None:
        if is_optional:
            return None
        made = None
        if name == _GENERATION:
            made = _synthesized_generation_config(checkpoint)
        elif name == _TEMPLATE:
            made = _embedded_template(checkpoint)
        if made is not None:
            notes.append(f"{name} is missing and was made from the tokenizer's files")
            return made
    return checkpoint.read_file(name)


def _synthesized_generation_config(checkpoint: SourceCheckpoint) -> bytes:
    """End and padding tokens of the family, by the ids this tokenizer gives them."""
    tokens = added_tokens(checkpoint.read_file(_TOKENIZER_CONFIG))
    ids = {token.content: token_id for token_id, token in tokens.items()}
    if _END_OF_TURN not in ids or _END_OF_TEXT not in ids:
        raise CheckpointError(
            f"{_GENERATION} is missing, and {_TOKENIZER_CONFIG} does not list {_END_OF_TURN} and"
            f" {_END_OF_TEXT} to make one from",
            field=_GENERATION,
        )
    end = ids[_END_OF_TEXT]
    config = {"eos_token_id": [ids[_END_OF_TURN], end], "pad_token_id": end}
    return (json.dumps(config, indent=2) + "\n").encode()


def _embedded_template(checkpoint: SourceCheckpoint) -> bytes | None:
    """The template that older exports keep inside the tokenizer's config."""
    config = parse_object(_TOKENIZER_CONFIG, checkpoint.read_file(_TOKENIZER_CONFIG))
    template = config.get("chat_template")
    return template.encode() if isinstance(template, str) and template else None


def _check_content(name: str, content: bytes) -> None:
    if name.endswith(".json"):
        parse_object(name, content)
        return
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{name} is not UTF-8: {error}", field=name) from error


def _compare_hashes(contents: Mapping[str, bytes], notes: list[str], is_strict: bool) -> None:
    for name, published in _PUBLISHED_HASHES.items():
        content = contents.get(f"{_FRONTEND}{name}")
        if content is None:
            continue
        found = hashlib.sha256(content).hexdigest()[: len(published)]
        if found == published:
            continue
        message = f"{name} has the hash {found}...; the published file has {published}..."
        if is_strict:
            raise CheckpointError(message, field=name)
        notes.append(message)
