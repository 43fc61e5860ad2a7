#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>

#include "../configs.h"
#include "../select.h"
#include "instances.h"
#include "launch.h"

namespace jax_gemm::sm80 {
namespace {

// The kernels this build holds; the macros come from the build's choice of maths.
std::span<const ConfigKernels> instances(Math math) {
  switch (math) {
#ifdef JAX_GEMM_HAS_BF16
    case Math::kBF16:
      return instances_bf16();
#endif
#ifdef JAX_GEMM_HAS_F16
    case Math::kF16:
      return instances_f16();
#endif
#ifdef JAX_GEMM_HAS_TF32
    case Math::kTF32:
      return instances_tf32();
#endif
#ifdef JAX_GEMM_HAS_F32
    case Math::kF32:
      return instances_f32();
#endif
    default:
      return {};
  }
}

// The height of a raster group, in tiles, with which one wave of blocks covers about a square of the output.
uint32_t group_height(const GemmConfig& config, int64_t tiles_m, int blocks_in_flight) {
  const double square = std::sqrt(static_cast<double>(blocks_in_flight) * config.tile_n / config.tile_m);
  return static_cast<uint32_t>(std::clamp<int64_t>(std::llround(square), 1, tiles_m));
}

OperandArgs operand_args(const Operand& operand, const GemmProblem& problem) {
  const int64_t bytes = operand_bytes(problem.math);
  OperandArgs args{
      static_cast<const char*>(operand.data), operand.ld * bytes, {}, operand_alignment(operand, problem)};
  for (int d = 0; d < kMaxBatchDims; ++d) args.batch_stride_bytes[d] = operand.batch_stride[d] * bytes;
  return args;
}

bool output_aligned(const GemmProblem& problem) {
  const int64_t bytes = dtype_bytes(problem.out_type);
  int64_t addresses = reinterpret_cast<int64_t>(problem.out) | (problem.m > 1 ? problem.out_ld * bytes : 0);
  for (int d = 0; d < problem.batch_rank; ++d) addresses |= problem.out_batch_stride[d] * bytes;
  return addresses % 16 == 0;
}

KernelArgs kernel_args(const GemmProblem& problem, const GemmConfig& config, int blocks_in_flight) {
  const int64_t tiles_m = (problem.m + config.tile_m - 1) / config.tile_m;
  const int64_t tiles_n = (problem.n + config.tile_n - 1) / config.tile_n;
  KernelArgs args{};
  args.m = problem.m;
  args.n = problem.n;
  args.k = problem.k;
  args.a = operand_args(problem.a, problem);
  args.b = operand_args(problem.b, problem);
  args.out = static_cast<char*>(problem.out);
  args.out_ld_bytes = problem.out_ld * dtype_bytes(problem.out_type);
  args.out_type = problem.out_type;
  args.out_aligned = output_aligned(problem);
  args.batch_rank = problem.batch_rank;
  for (int d = 0; d < kMaxBatchDims; ++d) {
    args.batch_dims[d] = static_cast<uint32_t>(problem.batch_dims[d]);
    args.out_batch_stride_bytes[d] = problem.out_batch_stride[d] * dtype_bytes(problem.out_type);
  }
  args.tiles_m = static_cast<uint32_t>(tiles_m);
  args.tiles_n = static_cast<uint32_t>(tiles_n);
  args.group_m = group_height(config, tiles_m, blocks_in_flight);
  return args;
}

// Raises the shared-memory limit of `kernels`, which also loads them.
Status prepare_kernels(const KernelsByMajors& kernels, int shared) {
  for (const auto& by_major_b : kernels.kernel) {
    for (const Kernel kernel : by_major_b) {
      if (kernel == nullptr) continue;
      JAX_GEMM_RETURN_IF_CUDA_ERROR(cudaFuncSetAttribute(
          reinterpret_cast<const void*>(kernel), cudaFuncAttributeMaxDynamicSharedMemorySize, shared));
    }
  }
  return {};
}

}  // namespace

Status prepare() {
  int device = 0;
  int shared_limit = 0;
  JAX_GEMM_RETURN_IF_CUDA_ERROR(cudaGetDevice(&device));
  JAX_GEMM_RETURN_IF_CUDA_ERROR(
      cudaDeviceGetAttribute(&shared_limit, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
  for (const Math math : {Math::kBF16, Math::kF16, Math::kTF32, Math::kF32}) {
    for (const ConfigKernels& kernels : instances(math)) {
      const int shared = shared_bytes(kernels.config);
      if (shared > shared_limit) continue;  // never legal on this device
      JAX_GEMM_RETURN_IF_ERROR(prepare_kernels(kernels.whole_chunks, shared));
      JAX_GEMM_RETURN_IF_ERROR(prepare_kernels(kernels.any_alignment, shared));
    }
  }
  return {};
}

Status launch(const GemmProblem& problem, const GemmConfig& config, int sm_count, cudaStream_t stream) {
  const auto table = instances(problem.math);
  const auto entry = std::ranges::find(table, config, &ConfigKernels::config);
  if (entry == table.end()) {
    return {StatusCode::kUnimplemented, config_name(config) + " is not part of this build"};
  }
  KernelArgs args = kernel_args(problem, config, sm_count);
  const KernelsByMajors& kernels = whole_chunks(problem) ? entry->whole_chunks : entry->any_alignment;
  const Kernel kernel = kernels.kernel[problem.a.major == Major::kMN][problem.b.major == Major::kMN];
  const int64_t blocks = int64_t{args.tiles_m} * args.tiles_n * batch_size(problem);
  void* parameters[] = {&args};
  JAX_GEMM_RETURN_IF_CUDA_ERROR(
      cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                       dim3(num_threads(config)), parameters, shared_bytes(config), stream));
  return {};
}

}  // namespace jax_gemm::sm80
