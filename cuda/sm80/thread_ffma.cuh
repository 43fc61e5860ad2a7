// A thread's share of the product at full f32 precision: an 8x8 tile of accumulators, FFMA. It has the same
// interface as WarpMma, so one kernel serves both.
//
// Lanes stand 4 (M) x 8 (N) in the warp, in the zigzag that lets 16-byte loads of neighbouring lanes merge:
// lanes i and i ^ 1 share their part of B, lanes i and i ^ 2 their part of A. Both tiles are rows of K,
// whatever the operands' majors, so that two loads bring what a thread needs of one K, and a slice is one K.
#pragma once

#include <cstdint>

#include "../common/swizzle.cuh"
#include "../gemm.h"
#include "../ptx/shared_memory.cuh"

namespace jax_gemm::sm80 {

// The 8 rows of A (or columns of B) that a thread owns: two chunks of four, each next to those of the
// `kLanes` lanes that share the warp's extent.
template <class Tile, int kLanes>
class ThreadLoader {
 public:
  static constexpr int kElements = 8;

  __device__ ThreadLoader(int warp_mn, int lane) : offset_(Tile::offset(0, warp_mn / 4 + lane)) {}

  // Where element i of a lane lies in the warp's extent.
  __device__ static constexpr int element(int lane, int i) { return 4 * lane + i % 4 + 4 * kLanes * (i / 4); }

  __device__ __forceinline__ void load(float (&r)[kElements], uint32_t tile, int k) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint4 v = ptx::ld_shared_v4(tile + offset_ + Tile::offset(k, half * kLanes));
      r[4 * half] = __uint_as_float(v.x), r[4 * half + 1] = __uint_as_float(v.y);
      r[4 * half + 2] = __uint_as_float(v.z), r[4 * half + 3] = __uint_as_float(v.w);
    }
  }

 private:
  int offset_;
};

template <GemmConfig kConfig>
class ThreadFfma {
  static constexpr int kLanesM = 4;
  static constexpr int kLanesN = 8;
  static constexpr int kThreadTile = 8;

 public:
  using TileA = PaddedTile<kConfig.tile_k, kConfig.tile_m * sizeof(float)>;
  using TileB = PaddedTile<kConfig.tile_k, kConfig.tile_n * sizeof(float)>;
  static constexpr bool kRowsOfK = true;
  static constexpr int kSlices = kConfig.tile_k;
  static constexpr int kFillParts = 3;  // of a tile's copies: many of 4 bytes would wait for each other
  static constexpr int kRun = 4;
  static constexpr bool kSwapsPairs = true;
  // The lanes of a phase of the store stand in two rows of four chunks.
  static constexpr Swizzle output_swizzle(DType) { return swizzle_two_rows_of_four_chunks(4); }

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

  // Multiplies register buffer `buffer` into the accumulators, then calls after_first_step(). Row by row, to
  // and fro: an FFMA finds its element of A, or at the turn that of B, in the operand cache. The other two
  // should be in different ones of the two banks, odd and even registers. Loads and runs are registers in
  // order: with the columns of each pair of a run exchanged, an accumulator's is odd where B's is even.
  template <class F>
  __device__ __forceinline__ void multiply(int buffer, F&& after_first_step) {
#pragma unroll
    for (int i = 0; i < kThreadTile; ++i) {
#pragma unroll
      for (int step = 0; step < kThreadTile; ++step) {
        const int j = i % 2 == 0 ? step : kThreadTile - 1 - step;
        accumulators_[i][j] = fmaf(a_[buffer][i], b_[buffer][j], accumulators_[i][j]);
      }
    }
    after_first_step();
  }

  template <class F>
  __device__ __forceinline__ void for_each_run(F&& f) const {
#pragma unroll
    for (int i = 0; i < kThreadTile; ++i) {
#pragma unroll
      for (int j = 0; j < kThreadTile; j += kRun) {
        float values[kRun];
#pragma unroll
        for (int v = 0; v < kRun; ++v) values[v] = accumulators_[i][j + (v ^ 1)];
        f(row_ + LoaderA::element(lane_m_, i), column_ + LoaderB::element(lane_n_, j), values);
      }
    }
  }

 private:
  static constexpr int kWarpsN = kConfig.tile_n / kConfig.warp_n;
  using LoaderA = ThreadLoader<TileA, kLanesM>;
  using LoaderB = ThreadLoader<TileB, kLanesN>;
  static_assert(kConfig.warp_m == kLanesM * kThreadTile && kConfig.warp_n == kLanesN * kThreadTile);
  static_assert(kSlices % 2 == 0, "register buffers alternate from slice to slice, also across tiles");

  int row_, column_;  // of the warp's tile in the block's
  int lane_m_, lane_n_;
  LoaderA loader_a_;
  LoaderB loader_b_;
  float a_[2][kThreadTile];                            // (buffer, m)
  float b_[2][kThreadTile];                            // (buffer, n)
  float accumulators_[kThreadTile][kThreadTile] = {};  // (m, n)
};

}  // namespace jax_gemm::sm80
