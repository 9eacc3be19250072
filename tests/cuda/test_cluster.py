"""Instructions of clusters assemble, and only for devices that have them."""

from typing import Any

import pytest

pytest.importorskip("numba.cuda.extending", reason="the extra [cuda] is not installed")

from ninfer.cuda import cluster
from ninfer.cuda.kernel_source import Kernel, Param
from ninfer.cuda.module import TARGETS, build, has_clusters, suits
from ninfer.errors import InvariantError
from tests.cuda.test_ptx import LITERALS

NAMES = sorted(name for name, value in vars(cluster).items() if hasattr(value, "param_types"))


def kernel_of_every_instruction() -> Kernel:
    lines = ["def every(address, word, value):"]
    for name in NAMES:
        made = getattr(cluster, name)
        call = f"cluster.{name}({', '.join(LITERALS[kind] for kind in made.param_types)})"
        keeps = f"store_u32(address, {call})" if made.num_results else call
        lines.append(f"    {keeps}")
    lines.append("    wait_for_predecessor()")
    space: dict[str, Any] = {}
    imports = "from ninfer.cuda import cluster\n"
    imports += "from ninfer.cuda.ptx import store_u32, wait_for_predecessor\n"
    exec(imports + "\n".join(lines), space)
    params = (Param.ADDRESS, Param.U32, Param.F32)
    return Kernel("every", space["every"], params, 64, 255, cluster_blocks=2)


@pytest.mark.parametrize("target", ["sm_90", "sm_100"])
def test_every_instruction_assembles(target: str) -> None:
    assert len(NAMES) == 9
    assert build(kernel_of_every_instruction(), target).cubin.startswith(b"\x7fELF")


def test_older_targets_have_no_clusters() -> None:
    kernel = kernel_of_every_instruction()

    assert [target for target in TARGETS if not suits(kernel, target)] == ["sm_80", "sm_89"]
    assert [target for target in TARGETS if not has_clusters(target)] == ["sm_80", "sm_89"]
    with pytest.raises(InvariantError, match="sm_80"):
        build(kernel, "sm_80")
