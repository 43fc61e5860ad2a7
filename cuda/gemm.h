// The border between host code and kernels: what a product is (GemmProblem) and how it is computed
// (GemmConfig). Plain structs, host and device, no CUDA and no XLA header.
//
//   out[batch, m, n] = sum over k of a[batch, m, k] * b[batch, k, n]
#pragma once

#include <cstdint>
#include <string>

namespace jax_gemm {

// How the elements are multiplied. Fixes the operands' type; the accumulators are f32 in all of these.
enum class Math : int32_t {
  kBF16,  // bfloat16 operands, mma.sync
  kF16,   // float16 operands, mma.sync
  kTF32,  // float32 operands rounded to tf32 on the way to mma.sync
  kF32,   // float32 operands, FFMA: full precision
};

enum class DType : int32_t { kBF16, kF16, kF32 };

// Which axis of an operand's matrix is contiguous in memory.
enum class Major : int32_t {
  kK,   // the contracted axis: A (M x K) row-major, B (K x N) column-major
  kMN,  // the kept axis: A column-major, B row-major
};

// Kernel families, one folder each.
enum class Family : int32_t { kSm80 };

// One kernel configuration: a row of the table in configs.h. All sizes in elements.
struct GemmConfig {
  Family family;
  Math math;
  int tile_m, tile_n, tile_k;  // block tile
  int warp_m, warp_n;          // warp tile
  int stages;                  // shared-memory tiles in the ring
  bool any_alignment;          // also built for operands that are not aligned to 16 bytes

  friend constexpr bool operator==(const GemmConfig&, const GemmConfig&) = default;
};

constexpr int operand_bytes(Math math) { return math == Math::kBF16 || math == Math::kF16 ? 2 : 4; }
constexpr int dtype_bytes(DType dtype) { return dtype == DType::kF32 ? 4 : 2; }

constexpr int num_threads(const GemmConfig& c) { return c.tile_m / c.warp_m * (c.tile_n / c.warp_n) * 32; }
// Of one operand's tile of `mn` rows or columns: f32 math pads each row of K by 16 bytes.
constexpr int tile_bytes(const GemmConfig& c, int mn) {
  return c.tile_k * (mn * operand_bytes(c.math) + (c.math == Math::kF32 ? 16 : 0));
}
// Dynamic shared memory of one block: the ring, which the epilogue reuses.
constexpr int shared_bytes(const GemmConfig& c) {
  return c.stages * (tile_bytes(c, c.tile_m) + tile_bytes(c, c.tile_n));
}

constexpr int accumulators_per_thread(const GemmConfig& c) { return c.warp_m * c.warp_n / 32; }
// The registers a thread may take, and the blocks that fit an SM's 64 Ki registers with them.
constexpr int max_registers(const GemmConfig& c) { return accumulators_per_thread(c) <= 64 ? 128 : 255; }
constexpr int min_blocks_per_sm(const GemmConfig& c) { return 65536 / (max_registers(c) * num_threads(c)); }

// E.g. "sm80_bf16_128x256x64_w64x64_s4". The name by which a configuration is asked for and reported.
std::string config_name(const GemmConfig& config);

inline constexpr int kMaxBatchDims = 4;

// An operand's matrices. Strides in elements; a batch stride of 0 broadcasts.
struct Operand {
  const void* data;
  Major major;
  int64_t ld;                           // distance between rows of the contiguous axis
  int64_t batch_stride[kMaxBatchDims];  // outermost first
};

struct GemmProblem {
  Math math;
  DType out_type;
  int64_t m, n, k;
  int32_t batch_rank;                 // dimensions of the batch in use, 0 to kMaxBatchDims
  int64_t batch_dims[kMaxBatchDims];  // outermost first, 1 beyond batch_rank
  Operand a, b;
  void* out;       // N is contiguous
  int64_t out_ld;  // distance between rows of M
  int64_t out_batch_stride[kMaxBatchDims];
};

constexpr int64_t batch_size(const GemmProblem& p) {
  int64_t size = 1;
  for (int i = 0; i < kMaxBatchDims; ++i) size *= p.batch_dims[i];
  return size;
}

}  // namespace jax_gemm
