"""Muon for matrices, AdamW for the rest, over float32 masters of narrower weights.

The model computes with copies; after each step they are written again from the masters, plainly or
through a storage format, so that training behind a format is the same step with another copy.
Matrices of one shape are orthogonalised together. Source: Muon, Moonlight's scaling.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from torch import Tensor

_NEWTON: Final = (3.4445, -4.7750, 2.0315)
_STEPS: Final = 5
_UPDATE_SIZE: Final = 0.2

Copier = Callable[[str, Tensor], Tensor]
"""Name and float32 master to the values the model computes with."""


def is_muon_matrix(name: str, parameter: Tensor) -> bool:
    """Whether a parameter is a map between hidden spaces; vocabularies and kernels are not."""
    plain = ("embed_tokens", "codebook", "in_proj_a", "in_proj_b", "base_kernel", "conv1d")
    return parameter.ndim == 2 and not any(part in name for part in plain)


def orthogonalise(batch: Tensor) -> Tensor:
    """Push all singular values of [n, rows, columns] towards one."""
    x = batch.to(torch.bfloat16) if batch.is_cuda else batch
    is_tall = x.shape[-2] > x.shape[-1]
    x = x.mT if is_tall else x
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    a, b, c = _NEWTON
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if is_tall else x).to(batch.dtype)


@dataclass(slots=True)
class Optimizer:
    """Updates named parameters; all state is in dictionaries by name.

    Attributes:
        parameters: the model's, by name.
        momentum: of Muon.
        betas: of AdamW.
        decay: weight decay of matrices, times the rate.
        masters, first, second: float32 values and moments.
        steps: updates made.
    """

    parameters: dict[str, Tensor]
    momentum: float = 0.95
    betas: tuple[float, float] = (0.9, 0.98)
    decay: float = 0.05
    masters: dict[str, Tensor] = field(default_factory=dict)
    first: dict[str, Tensor] = field(default_factory=dict)
    second: dict[str, Tensor] = field(default_factory=dict)
    steps: int = 0

    def __post_init__(self) -> None:
        for name, parameter in self.parameters.items():
            self.masters[name] = parameter.detach().float().clone()
            self.first[name] = torch.zeros_like(self.masters[name])
            if not is_muon_matrix(name, parameter):
                self.second[name] = torch.zeros_like(self.masters[name])

    def groups(self) -> list[list[str]]:
        """Return the names of Muon's matrices, one list for each shape."""
        shapes: dict[torch.Size, list[str]] = {}
        for name, parameter in self.parameters.items():
            if name not in self.second:
                shapes.setdefault(parameter.shape, []).append(name)
        return list(shapes.values())

    @torch.no_grad()
    def step(self, rate: float, clip: float = 1.0) -> Tensor:
        """Update the masters from the gradients, and drop these.

        Args:
            rate: learning rate of every group.
            clip: largest norm of the whole gradient.

        Returns:
            The norm of the gradient.
        """
        self.steps += 1
        names = list(self.parameters)
        gradients = {}
        for name in names:
            gradient = self.parameters[name].grad
            gradients[name] = (
                torch.zeros_like(self.masters[name]) if gradient is None else gradient.float()
            )
            self.parameters[name].grad = None
        norm = torch.stack(torch._foreach_norm(list(gradients.values()))).norm()
        scale = (clip / (norm + 1e-6)).clamp(max=1.0)
        torch._foreach_mul_(list(gradients.values()), scale)
        self._adam([name for name in names if name in self.second], gradients, rate)
        for group in self.groups():
            self._muon(group, gradients, rate)
        return norm

    def _adam(self, names: list[str], gradients: dict[str, Tensor], rate: float) -> None:
        first = [self.first[name] for name in names]
        second = [self.second[name] for name in names]
        masters = [self.masters[name] for name in names]
        changes = [gradients[name] for name in names]
        torch._foreach_lerp_(first, changes, 1 - self.betas[0])
        torch._foreach_mul_(second, self.betas[1])
        torch._foreach_addcmul_(second, changes, changes, 1 - self.betas[1])
        roots = torch._foreach_div(second, 1 - self.betas[1] ** self.steps)
        torch._foreach_sqrt_(roots)
        torch._foreach_add_(roots, 1e-8)
        factor = -rate / (1 - self.betas[0] ** self.steps)
        torch._foreach_addcdiv_(masters, first, roots, factor)

    def _muon(self, names: list[str], gradients: dict[str, Tensor], rate: float) -> None:
        first = [self.first[name] for name in names]
        changes = [gradients[name] for name in names]
        torch._foreach_lerp_(first, changes, 1 - self.momentum)
        torch._foreach_lerp_(changes, first, self.momentum)
        update = orthogonalise(torch.stack(changes))
        size = _UPDATE_SIZE * max(update.shape[-2:]) ** 0.5
        masters = [self.masters[name] for name in names]
        torch._foreach_mul_(masters, 1 - rate * self.decay)
        torch._foreach_add_(masters, list(update.unbind()), alpha=-rate * size)

    @torch.no_grad()
    def publish(self, copier: Copier | None = None) -> None:
        """Write what the model computes with."""
        if copier is None:
            torch._foreach_copy_(list(self.parameters.values()), list(self.masters.values()))
            return
        for name, parameter in self.parameters.items():
            parameter.copy_(copier(name, self.masters[name]))

    def state(self) -> dict[str, Any]:
        """Return everything a later run needs to go on."""
        return {
            "masters": self.masters,
            "first": self.first,
            "second": self.second,
            "steps": self.steps,
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Take over a state of the same parameters."""
        for kind in ("masters", "first", "second"):
            own: dict[str, Tensor] = getattr(self, kind)
            for name, tensor in state[kind].items():
                own[name].copy_(tensor)
        self.steps = state["steps"]
