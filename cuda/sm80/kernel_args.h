// The parameters of an sm80 kernel, as the launcher fills them in: GemmProblem with everything divided out
// that does not change from block to block. Sizes in elements, strides in bytes.
#pragma once

#include "../gemm.h"

namespace jax_gemm::sm80 {

struct OperandArgs {
  const char* data;
  int64_t ld_bytes;
  int64_t batch_stride_bytes[kMaxBatchDims];
  int copy_bytes;  // 16, 8, 4 or 2: the widest copy that its address and strides allow
};

struct KernelArgs {
  int64_t m, n, k;
  OperandArgs a, b;
  char* out;
  int64_t out_ld_bytes;
  int64_t out_batch_stride_bytes[kMaxBatchDims];
  DType out_type;
  bool out_aligned;  // every row of the output starts on a 16-byte boundary
  int32_t batch_rank;
  uint32_t batch_dims[kMaxBatchDims];
  uint32_t tiles_m, tiles_n;
  uint32_t group_m;  // raster: tile rows in a group
};

}  // namespace jax_gemm::sm80
