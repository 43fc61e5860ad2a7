#include "launch.cuh"

namespace jax_gemm::sm80 {

std::span<const ConfigKernels> instances_f32() { return make_instances<Math::kF32>(); }

}  // namespace jax_gemm::sm80
