// A thread's share of the product at full f32 precision: an 8x8 tile of accumulators, FFMA. It has the same
// interface as WarpMma, so one kernel serves both.
//
// Lanes stand 4 (M) x 8 (N) in the warp, in the zigzag that lets 16-byte loads of neighbouring lanes merge:
// lanes i and i ^ 1 share their part of B, lanes i and i ^ 2 their part of A. A slice is one chunk of K,
// k4: a K-major tile is read along K, an MN-major one along M or N.
#pragma once

#include <cstdint>

#include "../gemm.h"
#include "../ptx/shared_memory.cuh"
#include "operand_copy.cuh"

namespace jax_gemm::sm80 {

// The 8 rows of A (or columns of B) that a thread owns, and how it reads them. `kLanes` is how many lanes
// share the warp's extent. Element i of lane l is
//   MN-major:        4 l + i % 4 + 4 kLanes (i / 4)      two chunks of four
//   K-major, A:      l + kLanes i                        successive lanes in successive rows
//   K-major, B:      2 l + i % 2 + 2 kLanes (i / 2)      pairs, so that the output comes in pairs
template <class Tile, Swizzle kSwizzle, Major kMajor, int kLanes, bool kPairs>
class ThreadLoader {
 public:
  static constexpr int kElements = 8;

  __device__ ThreadLoader(int warp_mn, int lane)
      : offset_(kMajor == Major::kK ? Tile::offset(warp_mn + element(lane, 0), 0)
                                    : Tile::offset(0, warp_mn / 4 + lane)) {}

  __host__ __device__ static constexpr int element(int lane, int i) {
    if (kMajor == Major::kMN) return 4 * lane + i % 4 + 4 * kLanes * (i / 4);
    return kPairs ? 2 * lane + i % 2 + 2 * kLanes * (i / 2) : lane + kLanes * i;
  }

  __device__ __forceinline__ void load(float (&r)[4][kElements], uint32_t tile, int slice) const {
    if constexpr (kMajor == Major::kK) {
#pragma unroll
      for (int i = 0; i < kElements; ++i) {
        const int row = element(0, i);  // of lane 0; the lanes' own part is in offset_
        const uint4 v = ptx::ld_shared_v4(tile + (offset_ ^ ((slice ^ kSwizzle.mask(row)) * kChunkBytes)) +
                                          row * Tile::kRowBytes);
        r[0][i] = __uint_as_float(v.x), r[1][i] = __uint_as_float(v.y);
        r[2][i] = __uint_as_float(v.z), r[3][i] = __uint_as_float(v.w);
      }
    } else {
#pragma unroll
      for (int k = 0; k < 4; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = slice * 4 + k;
          const int mask = kSwizzle.mask(row) ^ (half * kLanes);
          const uint4 v = ptx::ld_shared_v4(tile + (offset_ ^ (mask * kChunkBytes)) + row * Tile::kRowBytes);
          float* out = &r[k][4 * half];
          out[0] = __uint_as_float(v.x), out[1] = __uint_as_float(v.y);
          out[2] = __uint_as_float(v.z), out[3] = __uint_as_float(v.w);
        }
      }
    }
  }

 private:
  int offset_;
};

template <GemmConfig kConfig, Major kMajorA, Major kMajorB>
class ThreadFfma {
  static constexpr int kLanesM = 4;
  static constexpr int kLanesN = 8;
  static constexpr int kThreadTile = 8;
  // K-major tiles: the rows of neighbouring lanes lie apart. MN-major ones are read row by row, and any
  // swizzle does that the copies can keep.
  static constexpr Swizzle kSwizzleA = kMajorA == Major::kK ? swizzle_eight_rows() : kNoSwizzle;
  static constexpr Swizzle kSwizzleB = kMajorB == Major::kK ? swizzle_eight_rows(2) : kNoSwizzle;

 public:
  using TileA = OperandTile<4, kConfig.tile_m, kConfig.tile_k, kMajorA, kSwizzleA>;
  using TileB = OperandTile<4, kConfig.tile_n, kConfig.tile_k, kMajorB, kSwizzleB>;
  static constexpr int kSlices = kConfig.tile_k / 4;
  static constexpr int kSteps = 4;  // outer products in a slice
  static constexpr int kRun = kMajorB == Major::kK ? 2 : 4;
  // The lanes of a phase of the store stand in two rows of four chunks.
  static constexpr Swizzle output_swizzle(DType) {
    return swizzle_two_rows_of_four_chunks(kMajorA == Major::kK ? 1 : 4);
  }

  __device__ ThreadFfma(int warp, int lane)
      : row_(warp / kWarpsN * kConfig.warp_m),
        column_(warp % kWarpsN * kConfig.warp_n),
        lane_m_(lane / 16 * 2 + lane % 2),
        lane_n_(lane / 2 % 8),
        loader_a_(row_, lane_m_),
        loader_b_(column_, lane_n_) {}

  __device__ __forceinline__ void load(int buffer, uint32_t a, uint32_t b, int slice) {
    loader_a_.load(a_[buffer], a, slice);
    loader_b_.load(b_[buffer], b, slice);
  }

  __device__ __forceinline__ void round(int) {}

  template <class F>
  __device__ __forceinline__ void multiply(int buffer, F&& between) {
#pragma unroll
    for (int k = 0; k < kSteps; ++k) {
#pragma unroll
      for (int i = 0; i < kThreadTile; ++i) {
#pragma unroll
        for (int step = 0; step < kThreadTile; ++step) {
          const int j =
              i % 2 == 0 ? step : kThreadTile - 1 - step;  // meets a column of B again while it is at hand
          accumulators_[i][j] = fmaf(a_[buffer][k][i], b_[buffer][k][j], accumulators_[i][j]);
        }
      }
      between(k);
    }
  }

  template <class F>
  __device__ __forceinline__ void for_each_run(F&& f) const {
#pragma unroll
    for (int i = 0; i < kThreadTile; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadTile; j += kRun) {
        float values[kRun];
#pragma unroll
        for (int v = 0; v < kRun; ++v) values[v] = accumulators_[i][j + v];
        f(row_ + LoaderA::element(lane_m_, i), column_ + LoaderB::element(lane_n_, j), values);
      }
    }
  }

 private:
  static constexpr int kWarpsN = kConfig.tile_n / kConfig.warp_n;
  using LoaderA = ThreadLoader<TileA, kSwizzleA, kMajorA, kLanesM, false>;
  using LoaderB = ThreadLoader<TileB, kSwizzleB, kMajorB, kLanesN, true>;
  static_assert(kConfig.warp_m == kLanesM * kThreadTile && kConfig.warp_n == kLanesN * kThreadTile);
  static_assert(kSlices % 2 == 0, "register buffers alternate from slice to slice, also across tiles");

  int row_, column_;  // of the warp's tile in the block's
  int lane_m_, lane_n_;
  LoaderA loader_a_;
  LoaderB loader_b_;
  float a_[2][4][kThreadTile];                         // (buffer, k, m)
  float b_[2][4][kThreadTile];                         // (buffer, k, n)
  float accumulators_[kThreadTile][kThreadTile] = {};  // (m, n)
};

}  // namespace jax_gemm::sm80
