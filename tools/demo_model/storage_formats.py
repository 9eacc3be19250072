"""What a storage profile does to each weight, in torch: values after encoding and decoding.

Follows the encoder's arithmetic step by step, so a model trained behind it is the model that ships.
Source: ninfer's artifact contract, grouped formats and inventories.
"""

from typing import Final

import torch
from torch import Tensor

# Group width and largest code of the grouped formats.
_Q4: Final = (64, -8, 7)
_Q5: Final = (64, -16, 15)
_W8: Final = (32, -127, 127)


def groupwise_format(name: str, rows: int, key_rows: int) -> list[tuple[int, tuple[int, int, int]]]:
    """Return row counts and formats of a trunk matrix under the groupwise profile, top to bottom.

    Args:
        name: of the parameter.
        rows: of the matrix.
        key_rows: query and key rows of a gated delta projection.
    """
    if name.endswith("in_proj_qkv.weight"):
        return [(key_rows, _Q4), (rows - key_rows, _Q5)]
    if name.endswith(("in_proj_z.weight", "out_proj.weight", "v_proj.weight", "o_proj.weight")):
        return [(rows, _Q5)]
    if name.endswith("down_proj.weight"):
        return [(rows, _Q5)]
    if name.endswith(("gate_proj.weight", "up_proj.weight", "k_proj.weight")):
        return [(rows, _Q4)]
    if name.endswith("embed_tokens.weight"):
        return [(rows, _W8)]
    return []


def companion_format(name: str, parameter: Tensor) -> tuple[int, int, int] | None:
    """Return the format of a matrix of the MTP head or drafter, None where it stays bf16."""
    plain = ("codebook", "kernel_projection", "hidden_projection", "base_kernel")
    if parameter.ndim != 2 or any(part in name for part in plain):
        return None
    return _W8


def through(values: Tensor, format: tuple[int, int, int]) -> Tensor:
    """Encode and decode a matrix [rows, columns]; columns past the last group count as zeros."""
    group, low, high = format
    columns = values.shape[1]
    padded = torch.nn.functional.pad(values, (0, -columns % group)).unflatten(1, (-1, group))
    largest = padded.abs().amax(-1, keepdim=True)
    scale = (largest / high).half().float()
    scale = torch.where((scale == 0) & (largest > 0), 2.0**-24, scale)
    inverse = torch.where(scale > 0, 1 / scale, 0)
    codes = (padded * inverse).round().clamp(low, high)
    return (codes * scale).flatten(1)[:, :columns]


class TrunkStorage:
    """Copies trunk masters through bf16 and the groupwise profile."""

    def __init__(self, head_dim: int, key_rows: int) -> None:
        self.head_dim = head_dim
        self.key_rows = key_rows

    def __call__(self, name: str, master: Tensor) -> Tensor:
        """Return the values the stored weight has."""
        values = master.bfloat16().float()
        if name.endswith("q_proj.weight"):
            # Heads alternate query rows (Q4) and gate rows (Q5).
            heads = values.view(-1, 2, self.head_dim, values.shape[1])
            query = through(heads[:, 0].flatten(0, 1), _Q4).view_as(heads[:, 0])
            gate = through(heads[:, 1].flatten(0, 1), _Q5).view_as(heads[:, 1])
            return torch.stack((query, gate), 1).view_as(values)
        if values.ndim != 2:
            return values if not name.endswith(("A_log", "dt_bias")) else master
        parts, first = [], 0
        for rows, format in groupwise_format(name, values.shape[0], self.key_rows):
            parts.append(through(values[first : first + rows], format))
            first += rows
        return torch.cat(parts) if parts else values


def companion_storage(name: str, master: Tensor) -> Tensor:
    """Return the values a companion's stored weight has."""
    values = master.bfloat16().float()
    format = companion_format(name, values)
    return values if format is None else through(values, format)
