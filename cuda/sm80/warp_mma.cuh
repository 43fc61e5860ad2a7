// A warp's share of the product on tensor cores: fragments from shared memory, mma.sync, accumulators.
//
// A slice is 32 bytes of K, two chunks: k16 for 16-bit elements, k8 for tf32. In both, a fragment register
// holds 32 bits of K, so that one description of the lanes serves all types.
#pragma once

#include <cstdint>

#include "../gemm.h"
#include "../ptx/mma.cuh"
#include "../ptx/shared_memory.cuh"
#include "operand_copy.cuh"

namespace jax_gemm::sm80 {

// Loads 16 (M or N) x one slice (K) as four registers, with ldmatrix. `kRowsFirst` says which way the 8x8
// matrices are numbered: along the tile's rows first (a fragment of A from a K-major tile, of B from an
// MN-major one) or along its columns.
template <class Tile, Major kMajor, bool kRowsFirst>
class LdmatrixLoader {
 public:
  __device__ LdmatrixLoader(int warp_mn, int lane) {
    const int second_row = kRowsFirst ? lane / 8 % 2 : lane / 16;
    const int second_chunk = kRowsFirst ? lane / 16 : lane / 8 % 2;
    const int row = lane % 8 + 8 * second_row;
    offset_ = kMajor == Major::kK ? Tile::offset(warp_mn + row, second_chunk)
                                  : Tile::offset(row, warp_mn / 8 + second_chunk);
  }

  __device__ __forceinline__ void load(uint32_t (&r)[4], uint32_t tile, int i, int slice) const {
    if constexpr (kMajor == Major::kK) {
      ptx::ldmatrix_x4(r, tile + (offset_ ^ (slice * 2 * kChunkBytes)) + i * 16 * Tile::kRowBytes);
    } else {
      ptx::ldmatrix_x4_trans(r, tile + (offset_ ^ (i * 2 * kChunkBytes)) + slice * 16 * Tile::kRowBytes);
    }
  }

 private:
  int offset_;
};

// Loads 32 (M or N) x one slice (K) of an MN-major tile of 32-bit elements, which ldmatrix cannot transpose,
// as two chunks: lane (g, t) takes elements 4g to 4g + 3 of rows t and t + 4 of the slice. To the tensor core
// they are rows g and g + 8 of two m16 tiles, or column g of four n8 tiles: the product's rows or columns
// come out permuted, and for_each_run puts them back.
template <class Tile>
class QuadLoader {
 public:
  __device__ QuadLoader(int warp_mn, int lane) : offset_(Tile::offset(lane % 4, warp_mn / 4 + lane / 4)) {}

  __device__ __forceinline__ void load(uint32_t (&r)[2][4], uint32_t tile, int i, int slice) const {
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      const uint4 v =
          ptx::ld_shared_v4(tile + (offset_ ^ (i * 8 * kChunkBytes)) + (slice * 8 + k * 4) * Tile::kRowBytes);
      r[k][0] = v.x, r[k][1] = v.y, r[k][2] = v.z, r[k][3] = v.w;
    }
  }

 private:
  int offset_;
};

// Prepares f32 bits for the tensor core, which drops the 13 low bits of tf32 operands: alone, that would
// shrink every product. cvt.rna.tf32 is emulated by two instructions on sm_90, of which one waits
// for the other; this takes one. It moves x away from zero by 0.35 to 0.7 units in the last place of tf32, so
// that what is dropped averages nothing: the error has a mean of 0.002 and a standard deviation of 0.306
// units, against 0.289 for rounding to nearest. It leaves tf32 values, subnormal ones too, infinities and NaN
// as they are; only beyond 3.4017e38, the last 0.03% of the range, finite values become infinite.
__device__ __forceinline__ uint32_t round_to_tf32(uint32_t f32_bits) {
  return __float_as_uint(__uint_as_float(f32_bits) * (1.0f + 0.348f / 1024));
}

template <Math kMath>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  if constexpr (kMath == Math::kBF16) ptx::mma_m16n8k16_bf16(c, a, b);
  if constexpr (kMath == Math::kF16) ptx::mma_m16n8k16_f16(c, a, b);
  if constexpr (kMath == Math::kTF32) ptx::mma_m16n8k8_tf32(c, a, b);
}

template <GemmConfig kConfig, Major kMajorA, Major kMajorB>
class WarpMma {
  static constexpr Math kMath = kConfig.math;
  static constexpr int kBytes = operand_bytes(kMath);
  // 32-bit MN-major tiles are read in quads, all others by ldmatrix.
  static constexpr bool kQuadsA = kBytes == 4 && kMajorA == Major::kMN;
  static constexpr bool kQuadsB = kBytes == 4 && kMajorB == Major::kMN;

  // Quads: two neighbouring chunks of 4 rows are read together.
  static constexpr Swizzle tile_swizzle(bool quads, Major major, int mn) {
    return quads ? swizzle_four_rows_of_chunk_pairs()
                 : swizzle_eight_rows_of((major == Major::kK ? kConfig.tile_k : mn) * kBytes / kChunkBytes);
  }

 public:
  using TileA = OperandTile<kBytes, kConfig.tile_m, kConfig.tile_k, kMajorA,
                            tile_swizzle(kQuadsA, kMajorA, kConfig.tile_m)>;
  using TileB = OperandTile<kBytes, kConfig.tile_n, kConfig.tile_k, kMajorB,
                            tile_swizzle(kQuadsB, kMajorB, kConfig.tile_n)>;
  static constexpr bool kRowsOfK = false;  // tiles keep their operands' majors
  static constexpr int kSlices = kConfig.tile_k * kBytes / (2 * kChunkBytes);
  static constexpr int kFillParts = 1;          // a tile's copies at once disturb the least
  static constexpr int kRun = kQuadsB ? 4 : 2;  // consecutive columns of the output that a thread holds
  static constexpr bool kSwapsPairs = false;    // in for_each_run, the columns 2 i and 2 i + 1

  // How accumulators lie in a staged tile of the output: what a phase of the store writes, 8 rows of a
  // chunk's quarters (16 bit), 4 rows of chunk halves (f32 pairs) or 2 rows of chunks (f32 quads), must lie
  // apart.
  static constexpr Swizzle output_swizzle(DType type) {
    constexpr int kStep = kQuadsA ? 4 : 1;  // rows of neighbouring lanes
    if (dtype_bytes(type) == 2) return swizzle_eight_rows();
    return kQuadsB ? swizzle_two_rows_of_even_chunks(kStep) : swizzle_four_rows_of_chunk_pairs(kStep);
  }

  __device__ WarpMma(int warp, int lane)
      : row_(warp / kWarpsN * kConfig.warp_m),
        column_(warp % kWarpsN * kConfig.warp_n),
        loader_a_(row_, lane),
        loader_b_(column_, lane) {
    row_ += lane / 4 * (kQuadsA ? 4 : 1);
    column_ += lane % 4 * (kQuadsB ? 8 : 2);
  }

  // Loads slice `slice` of the tiles at shared addresses `a` and `b` into register buffer `buffer`.
  __device__ __forceinline__ void load(int buffer, uint32_t a, uint32_t b, int slice) {
    load_a(a_[buffer], a, slice);
    load_b(b_[buffer], b, slice);
  }

  // Multiplies register buffer `buffer` into the accumulators, and calls after_first_step() on the way, for
  // other work to be issued in the tensor cores' shadow. Column by column, to and fro: two mma in a row
  // always share a fragment.
  template <class F>
  __device__ __forceinline__ void multiply(int buffer, F&& after_first_step) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      round(buffer, step);
#pragma unroll
      for (int j = step * kColumnsPerStep; j < (step + 1) * kColumnsPerStep; ++j) {
#pragma unroll
        for (int row = 0; row < kTilesM; ++row) {
          const int i = j % 2 == 0 ? row : kTilesM - 1 - row;
          mma<kMath>(accumulators_[i][j], a_[buffer][i], b_[buffer][j]);
        }
      }
      if (step == 0) after_first_step();
    }
  }

  // Calls f(row, column, values) for each run of kRun accumulators, with its place in the block tile.
  template <class F>
  __device__ __forceinline__ void for_each_run(F&& f) const {
#pragma unroll
    for (int i = 0; i < kTilesM; ++i) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = row_ + (kQuadsA ? i / 2 * 32 + i % 2 * 2 + half : i * 16 + half * 8);
#pragma unroll
        for (int j = 0; j < kTilesN; ++j) {
          if constexpr (kQuadsB) {  // column 0 or 1 of the four tiles of a quad
            const int c = j % 4;
            if (c >= 2) continue;
            const auto& quad = &accumulators_[i][j - c];
            const float values[kRun] = {quad[0][2 * half + c], quad[1][2 * half + c], quad[2][2 * half + c],
                                        quad[3][2 * half + c]};
            f(row, column_ + j / 4 * 32 + c * 4, values);
          } else {
            const float values[kRun] = {accumulators_[i][j][2 * half], accumulators_[i][j][2 * half + 1]};
            f(row, column_ + j * 8, values);
          }
        }
      }
    }
  }

 private:
  // Rounds what a step is the first to multiply: its columns of B, and with the first all of A. Only tf32
  // needs it.
  __device__ __forceinline__ void round(int buffer, int step) {
    if constexpr (kMath == Math::kTF32) {
#pragma unroll
      for (int i = 0; i < (step == 0 ? kTilesM : 0); ++i) {
#pragma unroll
        for (int r = 0; r < 4; ++r) a_[buffer][i][r] = round_to_tf32(a_[buffer][i][r]);
      }
#pragma unroll
      for (int j = step * kColumnsPerStep; j < (step + 1) * kColumnsPerStep; ++j) {
#pragma unroll
        for (int r = 0; r < 2; ++r) b_[buffer][j][r] = round_to_tf32(b_[buffer][j][r]);
      }
    }
  }

  static constexpr int kWarpsN = kConfig.tile_n / kConfig.warp_n;
  static constexpr int kTilesM = kConfig.warp_m / 16;
  static constexpr int kTilesN = kConfig.warp_n / 8;
  static constexpr int kColumnsPerStep = 2;
  static constexpr int kSteps = kTilesN / kColumnsPerStep;  // into which a slice's multiplication is divided
  using LoaderA =
      std::conditional_t<kQuadsA, QuadLoader<TileA>, LdmatrixLoader<TileA, kMajorA, kMajorA == Major::kK>>;
  using LoaderB =
      std::conditional_t<kQuadsB, QuadLoader<TileB>, LdmatrixLoader<TileB, kMajorB, kMajorB == Major::kMN>>;
  static_assert(kConfig.warp_m % 32 == 0 && kConfig.warp_n % 32 == 0, "whole quads");
  static_assert(kSlices % 2 == 0, "register buffers alternate from slice to slice, also across tiles");

  __device__ __forceinline__ void load_a(uint32_t (&fragments)[kTilesM][4], uint32_t tile, int slice) {
    if constexpr (kQuadsA) {
#pragma unroll
      for (int i = 0; i < kTilesM; i += 2) {
        uint32_t r[2][4];
        loader_a_.load(r, tile, i / 2, slice);
#pragma unroll
        for (int h = 0; h < 4; ++h) {  // (k half, row half) of the two m16 tiles
          fragments[i][h] = r[h / 2][h % 2];
          fragments[i + 1][h] = r[h / 2][2 + h % 2];
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kTilesM; ++i) loader_a_.load(fragments[i], tile, i, slice);
    }
  }

  __device__ __forceinline__ void load_b(uint32_t (&fragments)[kTilesN][2], uint32_t tile, int slice) {
    if constexpr (kQuadsB) {
#pragma unroll
      for (int j = 0; j < kTilesN; j += 4) {
        uint32_t r[2][4];
        loader_b_.load(r, tile, j / 4, slice);
#pragma unroll
        for (int h = 0; h < 8; ++h) fragments[j + h / 2][h % 2] = r[h % 2][h / 2];
      }
    } else {
#pragma unroll
      for (int j = 0; j < kTilesN; j += 2) {
        uint32_t r[4];
        loader_b_.load(r, tile, j / 2, slice);
#pragma unroll
        for (int h = 0; h < 4; ++h) fragments[j + h / 2][h % 2] = r[h];
      }
    }
  }

  int row_, column_;  // of this thread's first accumulator in the block tile
  LoaderA loader_a_;
  LoaderB loader_b_;
  uint32_t a_[2][kTilesM][4];                     // (buffer, m16, registers)
  uint32_t b_[2][kTilesN][2];                     // (buffer, n8, registers)
  float accumulators_[kTilesM][kTilesN][4] = {};  // (m16, n8, registers)
};

}  // namespace jax_gemm::sm80
