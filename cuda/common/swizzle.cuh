// Where the 16-byte chunks of a tile lie in shared memory, so that the accesses of a warp meet all 32
// banks once: within each row the chunk index is XORed with a mask that depends on the row.
#pragma once

#include <cstdint>

namespace jax_gemm {

inline constexpr int kChunkBytes = 16;
inline constexpr int kBankChunks = 8;  // 32 banks of 4 bytes

// Moves successive rows apart: of `rows` rows at distance `step`, each lies `chunks` chunks further (by XOR)
// than the one before, after which the pattern repeats.
struct Swizzle {
  int rows;
  int step;
  int chunks;

  __host__ __device__ constexpr int mask(int row) const { return row / step % rows * chunks; }
};

// For accesses to one chunk of 8 successive rows: ldmatrix, 16-byte loads along a row of threads, 16-bit
// accumulators. Rows shorter than the 32 banks share them already.
__host__ __device__ constexpr Swizzle swizzle_eight_rows(int row_chunks) {
  return row_chunks < kBankChunks ? Swizzle{row_chunks, kBankChunks / row_chunks, 1}
                                  : Swizzle{kBankChunks, 1, 1};
}

// A tile of kRows rows, each kRowBytes of consecutive elements.
template <int kRows_, int kRowBytes_, Swizzle kSwizzle>
struct SwizzledTile {
  static constexpr int kRows = kRows_;
  static constexpr int kRowBytes = kRowBytes_;
  static constexpr int kRowChunks = kRowBytes / kChunkBytes;
  static constexpr int kBytes = kRows * kRowBytes;
  static_assert(kRowBytes % kChunkBytes == 0 && (kRowChunks & (kRowChunks - 1)) == 0);

  static_assert((kSwizzle.rows - 1) * kSwizzle.chunks < kRowChunks, "the mask must stay inside the row");

  // Byte offset of a chunk. Because a mask is applied by XOR, moving from chunk c to c ^ d moves the offset
  // from x to x ^ (d * kChunkBytes).
  __host__ __device__ static constexpr int offset(int row, int chunk) {
    return row * kRowBytes + (chunk ^ kSwizzle.mask(row)) * kChunkBytes;
  }
};

}  // namespace jax_gemm
