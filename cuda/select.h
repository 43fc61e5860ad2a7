// Which configuration computes a problem: legality, cost, choice. Host only, no CUDA: everything
// here can be asked without a GPU.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "device.h"
#include "export.h"
#include "gemm.h"
#include "status.h"

namespace jax_gemm {

// How deep a ring must be, for a block that has its SM's share of the device to itself.
struct RingModel {
  double compute_us;  // T_c: multiplying one K tile
  double memory_us;   // T_m: fetching one K tile from device memory
  int stages_needed;  // 1 + ceil(latency / max(T_c, T_m))
};

JAX_GEMM_API RingModel ring_model(int tile_m, int tile_n, int tile_k, int element_bytes, double peak_tflops,
                                  double bandwidth_gbs, int sm_count, double latency_us);

// Predicted cost of a problem under a configuration.
struct Estimate {
  RingModel ring;
  double latency_us;
  int blocks_per_sm;  // resident at once
  double tiles;
  double waves;  // tiles over those resident on the whole device: 3.1 costs 4
  double total_us;
  double floor_us;  // physical limit: the larger of operations / peak and bytes / bandwidth
  double tflops;    // at total_us
};

// Largest power of two, at most 16, that divides the operand's address and the strides that are
// used, in bytes. `operand` is one of the problem's own two.
JAX_GEMM_API int operand_alignment(const Operand& operand, const GemmProblem& problem);

// Whether both operands consist of whole 16-byte chunks: aligned to 16 bytes, and so many elements along the
// contiguous axis. The kernels' fastest copies want that; other operands need `any_alignment`.
JAX_GEMM_API bool whole_chunks(const GemmProblem& problem);

// THE legality predicate. The message is the bare reason.
JAX_GEMM_API Status is_legal(const GemmConfig& config, const GemmProblem& problem, const DeviceFacts& device);

// The cost model. `config` need not be legal; m, n and the batch must not be empty.
JAX_GEMM_API Estimate estimate(const GemmConfig& config, const GemmProblem& problem,
                               const DeviceFacts& device);

// The configuration named `requested`, or where that is empty the legal one of the least estimate:
// a function of its arguments only, so that all processes of a program choose alike.
JAX_GEMM_API Status select(const GemmProblem& problem, const DeviceFacts& device, std::string_view requested,
                           const GemmConfig** chosen);

// "bf16 M=64 N=64 K=32 batch=2x3, A K-major ld 32, B N-major ld 64, to bf16": how messages state a
// problem.
JAX_GEMM_API std::string describe(const GemmProblem& problem);

JAX_GEMM_API std::string config_name(const GemmConfig& config);  // see gemm.h
JAX_GEMM_API const char* math_name(Math math);                   // "bf16"
JAX_GEMM_API const char* dtype_name(DType dtype);                // "bfloat16"
JAX_GEMM_API const char* family_name(Family family);             // "sm80"

}  // namespace jax_gemm
