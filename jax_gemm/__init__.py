"""Matrix products for JAX on NVIDIA GPUs, computed by CUDA kernels of their own."""

from importlib import metadata as _metadata

from jax_gemm import _rules as _rules  # registers how JAX transforms products
from jax_gemm import checkpoint_policies as checkpoint_policies
from jax_gemm._dot_general import dot as dot
from jax_gemm._dot_general import dot_general as dot_general
from jax_gemm._dot_general import einsum as einsum
from jax_gemm._dot_general import tensordot as tensordot
from jax_gemm._dot_general import vdot as vdot
from jax_gemm._explain import Explanation as Explanation
from jax_gemm._explain import explain as explain
from jax_gemm._export import export_disabled_checks as export_disabled_checks
from jax_gemm._install import install as install
from jax_gemm._install import installed as installed
from jax_gemm._install import uninstall as uninstall
from jax_gemm._matmul import matmul as matmul
from jax_gemm._report import Report as Report
from jax_gemm._report import ReportLine as ReportLine
from jax_gemm._report import report as report

try:
    __version__ = _metadata.version("jax_gemm")
except _metadata.PackageNotFoundError:  # a source tree that is not installed
    __version__ = "0+unknown"
