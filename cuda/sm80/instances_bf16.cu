#include "launch.cuh"

namespace jax_gemm::sm80 {

std::span<const ConfigKernels> instances_bf16() { return make_instances<Math::kBF16>(); }

}  // namespace jax_gemm::sm80
