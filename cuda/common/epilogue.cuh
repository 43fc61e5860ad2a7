// From accumulators to the output: rounded once, staged in shared memory, written row by row.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "../gemm.h"
#include "../ptx/global_memory.cuh"
#include "../ptx/shared_memory.cuh"
#include "swizzle.cuh"

namespace jax_gemm {

// Where a block's tile lies in the output.
struct OutputTile {
  char* data;         // its first element
  int64_t ld_bytes;   // between rows
  int rows, columns;  // how much of the tile lies inside the output
  bool aligned;       // every row starts on a 16-byte boundary
};

// Two accumulators in one word of a 16-bit type.
template <DType kType>
__device__ __forceinline__ uint32_t pack_pair(float low, float high) {
  static_assert(kType == DType::kBF16 || kType == DType::kF16);
  if constexpr (kType == DType::kBF16) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  } else {
    const __half2 pair = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(pair);
  }
}

template <DType kType>
__device__ __forceinline__ void stage_run(uint32_t shared, const float (&v)[2]) {
  if constexpr (kType == DType::kF32) {
    ptx::st_shared_v2(shared, {__float_as_uint(v[0]), __float_as_uint(v[1])});
  } else {
    ptx::st_shared_b32(shared, pack_pair<kType>(v[0], v[1]));
  }
}

template <DType kType>
__device__ __forceinline__ void stage_run(uint32_t shared, const float (&v)[4]) {
  static_assert(kType == DType::kF32);
  ptx::st_shared_v4(
      shared, {__float_as_uint(v[0]), __float_as_uint(v[1]), __float_as_uint(v[2]), __float_as_uint(v[3])});
}

// Writes a staged tile in pieces of kPiece bytes, neighbouring threads on neighbouring pieces of a row. With
// kSwapped the elements (of 4 bytes) of each pair have been staged in each other's place.
template <class Tile, int kElementBytes, int kPiece, int kThreads, bool kSwapped>
__device__ void write_staged(uint32_t staged, const OutputTile& out, int thread) {
  constexpr int kRowPieces = Tile::kRowBytes / kPiece;
#pragma unroll 4
  for (int index = thread; index < Tile::kRows * kRowPieces; index += kThreads) {
    const int row = index / kRowPieces;
    const int byte = index % kRowPieces * kPiece;
    if (row >= out.rows || byte + kPiece > out.columns * kElementBytes) continue;
    const uint32_t source = staged + Tile::offset(row, byte / kChunkBytes) + byte % kChunkBytes;
    char* destination = out.data + row * out.ld_bytes + byte;
    if constexpr (kPiece == 16) {
      const uint4 v = ptx::ld_shared_v4(source);
      ptx::st_global_v4(destination, kSwapped ? uint4{v.y, v.x, v.w, v.z} : v);
    }
    if constexpr (kPiece == 4) {
      ptx::st_global_b32(destination, ptx::ld_shared_b32(kSwapped ? source ^ 4 : source));
    }
    if constexpr (kPiece == 2) ptx::st_global_b16(destination, ptx::ld_shared_b16(source));
  }
}

// Writes the accumulators of `math` (WarpMma or a like class) as elements of kType, through the shared
// memory at `staged`, which no thread may be reading or writing any more.
template <DType kType, int kTileM, int kTileN, int kThreads, class BlockMath>
__device__ void write_output(const BlockMath& math, uint32_t staged, const OutputTile& out, int thread) {
  constexpr int kElementBytes = dtype_bytes(kType);
  constexpr bool kSwapped = BlockMath::kSwapsPairs;
  static_assert(!kSwapped || kElementBytes == 4);
  using Tile = SwizzledTile<kTileM, kTileN * kElementBytes, BlockMath::output_swizzle(kType)>;
  math.for_each_run([&](int row, int column, const float (&values)[BlockMath::kRun]) {
    const int byte = column * kElementBytes;
    stage_run<kType>(staged + Tile::offset(row, byte / kChunkBytes) + byte % kChunkBytes, values);
  });
  __syncthreads();
  const bool whole_pieces = out.aligned && out.columns * kElementBytes % kChunkBytes == 0;
  if (whole_pieces) {
    write_staged<Tile, kElementBytes, kChunkBytes, kThreads, kSwapped>(staged, out, thread);
  } else {
    write_staged<Tile, kElementBytes, kElementBytes, kThreads, kSwapped>(staged, out, thread);
  }
}

}  // namespace jax_gemm
