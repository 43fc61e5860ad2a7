#include "launch.cuh"

namespace jax_gemm::sm80 {

std::span<const ConfigKernels> instances_f16() { return make_instances<Math::kF16>(); }

}  // namespace jax_gemm::sm80
