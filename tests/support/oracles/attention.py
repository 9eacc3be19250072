"""Float64 oracle of gated causal attention over whole sequences. Source: model contract 3.4."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

F64 = npt.NDArray[np.float64]


def gated_attention(
    queries: F64,
    gates: F64,
    keys: Sequence[F64],
    values: Sequence[F64],
    lengths: Sequence[int],
    scale: float,
) -> F64:
    """Attend each column over its own sequence.

    queries, gates: [T, heads, D]; keys, values: for each column [kv_heads, N, D], of which the
    first ``lengths[t]`` positions are attended. Returns [T, heads * D].
    """
    num_tokens, num_heads, head_dim = queries.shape
    out = np.empty((num_tokens, num_heads, head_dim))
    for t in range(num_tokens):
        sharing = num_heads // keys[t].shape[0]
        for n in range(num_heads):
            k = keys[t][n // sharing, : lengths[t]]
            v = values[t][n // sharing, : lengths[t]]
            scores = k @ queries[t, n] * scale
            weights = np.exp(scores - scores.max())
            out[t, n] = (weights / weights.sum()) @ v / (1 + np.exp(-gates[t, n]))
    return out.reshape(num_tokens, num_heads * head_dim)
