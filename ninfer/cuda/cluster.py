"""Instructions of clusters: blocks on several multiprocessors that write each other's memory.

Devices of sm_90 and later have them; a kernel that uses them says so (`Kernel.cluster_blocks`). An
address of shared memory is a block's own until `map_shared` names a block of the cluster. Nobody
may write to a block that has not started, and none may end while others still write to it.

A meeting that releases what was written waits for everything that a thread has asked for, copies of
weights as well. Stores that count their bytes at a barrier of the other block do not, but
`racecheck` does not come back from them: kernels that meet once at their end do without.

Knows no kernel. Source: PTX ISA manual, parallel synchronization.
"""

from numba.cuda import types

from ninfer.cuda.ptx import define

_U32, _U64, _F32 = types.uint32, types.uint64, types.float32

# A barrier of all threads of the cluster, which each passes in two steps; whole warps. What was
# written before `release_cluster` is seen behind `wait_cluster`; `arrive_cluster` only says that a
# thread is there.
arrive_cluster = define("barrier.cluster.arrive.relaxed.aligned;", [], [], is_ordered=True)
release_cluster = define("barrier.cluster.arrive.release.aligned;", [], [], is_ordered=True)
wait_cluster = define("barrier.cluster.wait.acquire.aligned;", [], [], is_ordered=True)

# Shared memory of another block: its address, and stores.
map_shared = define("mapa.shared::cluster.u32 $0, $1, $2;", [_U32], [_U32, _U32])
put_there_f32x2 = define(
    "st.shared::cluster.v2.f32 [$0], {$1,$2};", [], [_U32, _F32, _F32], is_ordered=True
)
put_there_u32 = define("st.shared::cluster.u32 [$0], $1;", [], [_U32, _U32], is_ordered=True)
put_there_u64 = define("st.shared::cluster.u64 [$0], $1;", [], [_U32, _U64], is_ordered=True)

# Stores that count their bytes at a barrier of the other block: who waits for it there sees them.
# Nothing is fenced, so that copies under way go on.
send_f32x2 = define(  # to, values, barrier; both addresses of the other block
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [$0], {$1,$2}, [$3];",
    [],
    [_U32, _F32, _F32, _U32],
    is_ordered=True,
)
send_f32x4 = define(
    "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [$0], {$1,$2,$3,$4}, [$5];",
    [],
    [_U32] + [_F32] * 4 + [_U32],
    is_ordered=True,
)
