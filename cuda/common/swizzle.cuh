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

// The swizzles in use, named after what one access of a warp (or the part of it that is served at once)
// meets; its rows are `step` rows apart. tests/index_maps.cc shows that each keeps those chunks in different
// banks.
__host__ __device__ constexpr Swizzle swizzle_eight_rows(int step = 1) { return {8, step, 1}; }
__host__ __device__ constexpr Swizzle swizzle_four_rows_of_chunk_pairs(int step = 1) { return {4, step, 2}; }
__host__ __device__ constexpr Swizzle swizzle_two_rows_of_four_chunks(int step = 1) { return {2, step, 4}; }
__host__ __device__ constexpr Swizzle swizzle_two_rows_of_even_chunks(int step = 1) { return {2, step, 1}; }
// One row at a time: any order of the chunks does.
inline constexpr Swizzle kNoSwizzle = {1, 1, 0};

// As swizzle_eight_rows(), for rows of `row_chunks` chunks: rows shorter than the 32 banks share them
// already.
__host__ __device__ constexpr Swizzle swizzle_eight_rows_of(int row_chunks) {
  return row_chunks < kBankChunks ? Swizzle{row_chunks, kBankChunks / row_chunks, 1} : swizzle_eight_rows();
}

// A tile of kRows rows, each kRowBytes of consecutive elements.
template <int kRows_, int kRowBytes_, Swizzle kSwizzle>
struct SwizzledTile {
  static constexpr int kRows = kRows_;
  static constexpr int kRowBytes = kRowBytes_;
  static constexpr int kRowStride = kRowBytes;  // bytes from row to row
  static constexpr int kRowChunks = kRowBytes / kChunkBytes;
  static constexpr int kBytes = kRows * kRowStride;
  static_assert(kRowBytes % kChunkBytes == 0 && (kRowChunks & (kRowChunks - 1)) == 0);

  static_assert((kSwizzle.rows - 1) * kSwizzle.chunks < kRowChunks, "the mask must stay inside the row");

  // Byte offset of a chunk. Because a mask is applied by XOR, moving from chunk c to c ^ d moves the offset
  // from x to x ^ (d * kChunkBytes).
  __host__ __device__ static constexpr int offset(int row, int chunk) {
    return row * kRowStride + (chunk ^ kSwizzle.mask(row)) * kChunkBytes;
  }
};

// The same with a chunk of padding after each row instead: eight successive rows of one chunk lie in
// different banks, and all rows of it at one distance, so that an address serves for all of them.
template <int kRows_, int kRowBytes_>
struct PaddedTile {
  static constexpr int kRows = kRows_;
  static constexpr int kRowBytes = kRowBytes_;
  static constexpr int kRowStride = kRowBytes + kChunkBytes;
  static constexpr int kRowChunks = kRowBytes / kChunkBytes;
  static constexpr int kBytes = kRows * kRowStride;
  static_assert(kRowBytes % (kBankChunks * kChunkBytes) == 0, "whole turns of the banks");

  __host__ __device__ static constexpr int offset(int row, int chunk) {
    return row * kRowStride + chunk * kChunkBytes;
  }
};

}  // namespace jax_gemm
