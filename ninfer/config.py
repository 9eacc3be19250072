"""Frozen start-up configuration.

Everything here is decided before anything is loaded and never changes afterwards; an illegal
combination is refused by `EngineConfig` itself. Reading ``NINFER_*`` variables is the command
line's business.
"""

import enum
import os
from dataclasses import dataclass, replace
from pathlib import Path

from ninfer.errors import ConfigurationError

MAX_CONCURRENCY = 8
PAGE_TOKENS = 64
PREFILL_CHUNK_MULTIPLE = 128
MAX_DRAFT_TOKENS = {"mtp": 5, "dflash": 15, "dflash2": 15}


def user_cache_folder() -> Path:
    """Folder of what this user's processes may keep and anyone may delete.

    Raises:
        RuntimeError: this user has no home.
    """
    root = os.environ.get("XDG_CACHE_HOME") or ""
    return (Path(root) if root.startswith("/") else Path.home() / ".cache") / "ninfer"


class Purpose(enum.Enum):
    """What an engine is built for; never switched."""

    GENERATION = "generation"
    CAUSAL_SCORING = "causal-scoring"


class KvDtype(enum.Enum):
    """Element type of the paged KV cache."""

    AUTO = "auto"  # the device's activation type
    F32 = "f32"  # host device only
    BF16 = "bf16"
    INT8_G64 = "int8"


class SpeculativeBackend(enum.Enum):
    """Drafter of speculative decoding."""

    NONE = "none"
    MTP = "mtp"
    DFLASH = "dflash"
    DFLASH2 = "dflash2"


class ProposalHead(enum.Enum):
    """Output head of the drafter."""

    FULL = "full"
    SHORT = "short"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineConfig:
    """Start-up configuration of one engine.

    Attributes:
        purpose: generation or offline scoring.
        device: ``"auto"``, ``"host"``, or the number of a CUDA device.
        max_concurrency: active requests, 1..8.
        max_pending: waiting requests, at least 0.
        max_context: longest sequence in tokens.
        shrinks_context: a model with fewer positions makes ``max_context`` smaller instead of
            refusing it.
        kv_capacity: tokens that all KV pages hold together; None is automatic.
        kv_headroom_bytes: device bytes an automatic capacity leaves free.
        prefill_chunk: tokens of one prefill chunk, a multiple of 128; None is automatic, by device
            and memory.
        draft_tokens: proposals of one speculative round; 0 without a backend.
        device_state_slots, host_state_slots: checkpoint StateImages beyond the active ones.
        host_kv_bytes: pinned bytes for checkpoint KV.
    """

    purpose: Purpose = Purpose.GENERATION
    device: str = "auto"
    max_concurrency: int = 1
    max_pending: int = 16
    max_context: int = 4096
    shrinks_context: bool = False
    kv_capacity: int | None = None
    kv_headroom_bytes: int = 1 << 30
    kv_dtype: KvDtype = KvDtype.AUTO
    prefill_chunk: int | None = None
    speculative: SpeculativeBackend = SpeculativeBackend.NONE
    draft_tokens: int = 0
    proposal_head: ProposalHead = ProposalHead.FULL
    has_vision: bool = False
    device_state_slots: int = 0
    host_state_slots: int = 0
    host_kv_bytes: int = 0
    use_graphs: bool = True
    has_prefix_reuse: bool = True

    def __post_init__(self) -> None:
        _in_range("max_concurrency", self.max_concurrency, 1, MAX_CONCURRENCY)
        _in_range("max_pending", self.max_pending, 0, 4096)
        _in_range("max_context", self.max_context, 1, 1 << 24)
        for name in (
            "device_state_slots",
            "host_state_slots",
            "host_kv_bytes",
            "kv_headroom_bytes",
        ):
            _in_range(name, getattr(self, name), 0, 1 << 50)
        chunk = self.prefill_chunk
        if chunk is not None and (
            isinstance(chunk, bool) or chunk % PREFILL_CHUNK_MULTIPLE or not 0 < chunk <= 1 << 20
        ):
            raise _refused("prefill_chunk", chunk, "a multiple of 128 up to 1048576")
        capacity = self.kv_capacity
        if capacity is not None and not self.max_context <= capacity <= 1 << 40:
            raise _refused(
                "kv_capacity",
                capacity,
                f"max_context, which is {self.max_context}, up to {1 << 40}",
            )
        if self.speculative is SpeculativeBackend.NONE:
            if self.draft_tokens != 0:
                raise _refused("draft_tokens", self.draft_tokens, "0 without a speculative backend")
        else:
            backend = self.speculative.value
            limit = MAX_DRAFT_TOKENS[backend]
            if self.draft_tokens == 0:
                raise ConfigurationError(
                    f"speculative is {backend}, which needs draft_tokens, 1..{limit}; and it is "
                    "not available yet with any model: none gives the same answers",
                    field="speculative",
                )
            _in_range("draft_tokens", self.draft_tokens, 1, limit)
        if self.purpose is Purpose.CAUSAL_SCORING and self.max_concurrency != 1:
            raise _refused("max_concurrency", self.max_concurrency, "1 for scoring")


def fitted(config: EngineConfig, model_positions: int) -> EngineConfig:
    """Return ``config`` with the context that a model of ``model_positions`` gets.

    Raises:
        ConfigurationError: the model has fewer positions, and the context may not shrink.
    """
    if config.max_context <= model_positions:
        return config
    if not config.shrinks_context:
        raise ConfigurationError(
            f"max_context is {config.max_context}; this model has {model_positions} positions",
            field="max_context",
        )
    return replace(config, max_context=model_positions)


def _in_range(name: str, value: int, low: int, high: int) -> None:
    if isinstance(value, bool) or not low <= value <= high:
        raise _refused(name, value, f"{low}..{high}")


def _refused(name: str, value: object, allowed: str) -> ConfigurationError:
    return ConfigurationError(f"{name} is {value}; allowed is {allowed}", field=name)
