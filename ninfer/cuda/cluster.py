"""Instructions of clusters: blocks on several multiprocessors that write each other's memory.

Devices of sm_90 and later have them; a kernel that uses them says so (`Kernel.cluster_blocks`). An
address of shared memory is a block's own until `map_shared` names a block of the cluster. Nobody
may write to a block that has not started, and none may end while others still write to it.

Stores that count their bytes at a barrier of the other block would need no second meeting of the
cluster, but `racecheck` does not come back from them, and they are not faster (H200).

Knows no kernel. Source: PTX ISA manual, parallel synchronization.
"""

from numba.cuda import types

from ninfer.cuda.ptx import define

_U32, _F32 = types.uint32, types.float32

# A barrier of all threads of the cluster, which each passes in two steps; whole warps. What was
# written before `release_cluster` is seen behind `wait_cluster`; `arrive_cluster` only says that a
# thread is there.
arrive_cluster = define("barrier.cluster.arrive.relaxed.aligned;", [], [], is_ordered=True)
release_cluster = define("barrier.cluster.arrive.release.aligned;", [], [], is_ordered=True)
wait_cluster = define("barrier.cluster.wait.acquire.aligned;", [], [], is_ordered=True)

# Shared memory of another block: its address, and a store.
map_shared = define("mapa.shared::cluster.u32 $0, $1, $2;", [_U32], [_U32, _U32])
put_there_f32x2 = define(
    "st.shared::cluster.v2.f32 [$0], {$1,$2};", [], [_U32, _F32, _F32], is_ordered=True
)
