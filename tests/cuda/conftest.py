"""Tests of the CUDA side need its compiler, the extra ``[cuda]``; no GPU."""

from importlib.util import find_spec

collect_ignore_glob = [] if find_spec("cuda") and find_spec("numba_cuda") else ["test_*.py"]
