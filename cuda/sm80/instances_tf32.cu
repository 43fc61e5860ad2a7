#include "launch.cuh"

namespace jax_gemm::sm80 {

std::span<const ConfigKernels> instances_tf32() { return make_instances<Math::kTF32>(); }

}  // namespace jax_gemm::sm80
