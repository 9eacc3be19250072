"""Instructions of clusters: blocks on several multiprocessors that write each other's memory.

Devices of sm_90 and later have them; a kernel that uses them says so (`Kernel.cluster_blocks`). An
address of shared memory is a block's own until `map_shared` names a block of the cluster. Nobody
may write to a block that has not started, and none may end while others still write to it.

Barriers that count bytes are those of `warpgroup`. A release or acquire among blocks would wait for
all of a thread's stores, or empty its first-level cache; stores that count their bytes at a barrier
where they arrive need neither.

Knows no kernel. Source: PTX ISA manual, parallel synchronization and st.async.
"""

from numba.cuda import types

from ninfer.cuda.ptx import define

_U32, _F32 = types.uint32, types.float32

# A barrier of all threads of the cluster, which each passes in two steps; whole warps.
arrive_cluster = define("barrier.cluster.arrive.relaxed.aligned;", [], [], is_ordered=True)
wait_cluster = define("barrier.cluster.wait.acquire.aligned;", [], [], is_ordered=True)

# Shared memory of another block: its address, and stores whose bytes a barrier there counts.
map_shared = define("mapa.shared::cluster.u32 $0, $1, $2;", [_U32], [_U32, _U32])
put_counted_f32x2 = define(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [$0], {$1,$2}, [$3];",
    [],
    [_U32, _F32, _F32, _U32],
    is_ordered=True,
)
