"""Bodies of the health endpoints, from published snapshots only.

Never waits for a lock that the worker holds, and needs no key. Source: the serving contract,
section 2.1.
"""

from collections.abc import Callable
from typing import Any

from ninfer.gateway.gateway import Gateway
from ninfer.gateway.server_state import ServerState

Health = tuple[int, dict[str, Any]]
"""Status and body."""

HealthOf = Callable[[Gateway], Health]


def live(gateway: Gateway) -> Health:
    """Whether the process can make progress."""
    state = gateway.life.state
    if state is ServerState.FAILED:
        return 503, {"status": "failed"}
    return 200, {"status": "alive", "uptime_s": int(gateway.life.now() - gateway.life.started)}


def ready(gateway: Gateway) -> Health:
    """Whether a request would be taken, and how busy the engine is."""
    reason = unready_reason(gateway)
    engine = gateway.life.engine
    if reason is None and engine is not None:
        status = engine.status()
        return 200, {
            "status": "ready",
            "model": engine.model_id,
            "active": status.active,
            "waiting": status.waiting,
            "last_progress_ms": int(status.progress_age_s(gateway.life.now()) * 1e3),
        }
    body: dict[str, Any] = {"status": "unready", "reason": reason}
    if reason == ServerState.STARTING.value:
        loading = gateway.life.loading
        body |= {"phase": loading.phase.value, "progress": round(loading.progress, 3)}
    return 503, body


def short(gateway: Gateway) -> Health:
    """The form that load balancers compare literally."""
    if unready_reason(gateway) is None:
        return 200, {"status": "ok"}
    return 503, {"status": "unavailable"}


def unready_reason(gateway: Gateway) -> str | None:
    """Why no request would be taken or get anywhere; None when one would."""
    life = gateway.life
    state = life.state
    engine = life.engine
    if state is not ServerState.READY or engine is None:
        return state.value
    is_stalled = engine.status().progress_age_s(life.now()) > gateway.settings.stall_timeout_s
    return "stalled" if is_stalled else None
