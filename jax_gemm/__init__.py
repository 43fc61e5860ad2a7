"""Matrix products for JAX on NVIDIA GPUs, computed by CUDA kernels of their own."""

from importlib import metadata as _metadata

from jax_gemm._dot_general import dot as dot
from jax_gemm._dot_general import dot_general as dot_general
from jax_gemm._dot_general import einsum as einsum
from jax_gemm._dot_general import tensordot as tensordot
from jax_gemm._dot_general import vdot as vdot
from jax_gemm._explain import Explanation as Explanation
from jax_gemm._explain import explain as explain
from jax_gemm._matmul import matmul as matmul

try:
    __version__ = _metadata.version("jax_gemm")
except _metadata.PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
