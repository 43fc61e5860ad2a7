// The multi-stage kernel of the sm80 family: cp.async fills a ring of shared-memory tiles while registers
// feed the tensor cores (or FFMA). One block computes one output tile.
//
//   global --cp.async--> ring of `stages` tiles --ldmatrix--> two register buffers --mma.sync--> accumulators
//
// What is in flight, at any time: `stages - 1` tiles of copies, one slice of fragments, one slice of mma.
#pragma once

#include <cstdint>

#include "../common/epilogue.cuh"
#include "../common/tile_scheduler.cuh"
#include "../configs.h"
#include "../ptx/cp_async.cuh"
#include "kernel_args.h"
#include "operand_copy.cuh"
#include "thread_ffma.cuh"
#include "warp_mma.cuh"

namespace jax_gemm::sm80 {

template <GemmConfig kConfig, Major kMajorA, Major kMajorB>
using BlockMath =
    std::conditional_t<kConfig.math == Math::kF32, ThreadFfma<kConfig>, WarpMma<kConfig, kMajorA, kMajorB>>;

template <class Math, class Tile, Major kMajor, int kBytes, int kThreads, bool kWhole>
using CopyTo = std::conditional_t<Math::kRowsOfK && kMajor == Major::kK, TransposingCopy<Tile, kThreads>,
                                  OperandCopy<Tile, kBytes, kMajor, kThreads, kWhole>>;

// The ring. The epilogue stages the output tile in the same memory.
template <GemmConfig kConfig, class TileA, class TileB>
struct SharedStorage {
  struct Slot {
    char a[TileA::kBytes];
    char b[TileB::kBytes];
  };
  Slot slots[kConfig.stages];
};

// What 16-bit math may write besides f32; tf32 and f32 write f32 only.
constexpr DType operand_dtype(Math math) {
  return math == Math::kBF16 ? DType::kBF16 : math == Math::kF16 ? DType::kF16 : DType::kF32;
}

__device__ inline int64_t batch_offset(const int64_t (&strides)[kMaxBatchDims], const KernelArgs& args,
                                       uint32_t batch) {
  int64_t offset = 0;
  for (int d = args.batch_rank - 1; d >= 0; --d) {
    offset += batch % args.batch_dims[d] * strides[d];
    batch /= args.batch_dims[d];
  }
  return offset;
}

__device__ inline int clamp_to_tile(int64_t left, int tile) {
  return left < tile ? static_cast<int>(left) : tile;
}

// The configuration is given by its index in the table: a struct cannot be a template argument of a kernel.
template <int kConfigIndex, Major kMajorA, Major kMajorB, bool kWhole>
__global__ void __launch_bounds__(num_threads(kConfigs[kConfigIndex]),
                                  min_blocks_per_sm(kConfigs[kConfigIndex]))
    gemm_kernel(const __grid_constant__ KernelArgs args) {
  // Preconditions
  constexpr GemmConfig kConfig = kConfigs[kConfigIndex];
  using Math_ = BlockMath<kConfig, kMajorA, kMajorB>;
  using TileA = typename Math_::TileA;  // (tile_m, tile_k) or (tile_k, tile_m)
  using TileB = typename Math_::TileB;  // (tile_n, tile_k) or (tile_k, tile_n)
  using Storage = SharedStorage<kConfig, TileA, TileB>;
  constexpr int kThreads = num_threads(kConfig);
  constexpr int kStages = kConfig.stages;
  constexpr int kBytes = operand_bytes(kConfig.math);
  constexpr DType kOperandType = operand_dtype(kConfig.math);
  static_assert(kStages >= 3, "one tile to read, one to fill, one in flight");
  static_assert(sizeof(Storage) == shared_bytes(kConfig));
  static_assert(sizeof(Storage) >= kConfig.tile_m * kConfig.tile_n * sizeof(float), "the epilogue's tile");

  extern __shared__ __align__(128) char shared[];
  Storage& storage = *reinterpret_cast<Storage*>(shared);
  const int thread = threadIdx.x;

  // This block's tile
  const TileCoordinate tile = tile_of_block(blockIdx.x, args.tiles_m, args.tiles_n, args.group_m);
  const int64_t m0 = static_cast<int64_t>(tile.m) * kConfig.tile_m;
  const int64_t n0 = static_cast<int64_t>(tile.n) * kConfig.tile_n;
  const int k_tiles = static_cast<int>((args.k + kConfig.tile_k - 1) / kConfig.tile_k);
  const int k_tail = static_cast<int>(args.k - static_cast<int64_t>(k_tiles - 1) * kConfig.tile_k);

  using CopyA = CopyTo<Math_, TileA, kMajorA, kBytes, kThreads, kWhole>;
  using CopyB = CopyTo<Math_, TileB, kMajorB, kBytes, kThreads, kWhole>;
  // The copies of a tile are issued in few, dense groups: wherever shared memory is read and then copied to,
  // the machine code gets three idle loads in between. All are issued before the next tile is opened.
  constexpr int kFillParts = Math_::kFillParts;
  constexpr int kFillEvery = (Math_::kSlices - 1) / kFillParts;  // slices
  static_assert(kFillEvery > 0);
  CopyA copy_a(args.a.data + batch_offset(args.a.batch_stride_bytes, args, tile.batch), args.a.ld_bytes,
               args.a.copy_bytes, args.m, m0, thread);
  CopyB copy_b(args.b.data + batch_offset(args.b.batch_stride_bytes, args, tile.batch), args.b.ld_bytes,
               args.b.copy_bytes, args.n, n0, thread);
  Math_ math(thread / 32, thread % 32);

  const uint32_t ring = ptx::shared_address(storage.slots);
  constexpr int kSlotBytes = sizeof(typename Storage::Slot);
  const auto next_slot = [&](uint32_t slot) {
    return slot == ring + (kStages - 1) * kSlotBytes ? ring : slot + kSlotBytes;
  };
  // Issues part `part` of `parts` of the copies of tile `k_tile` into a slot; the last part closes the group.
  // Past the last tile the group is empty, so that the number of groups to wait for never changes.
  const auto fill = [&](int k_tile, uint32_t slot, int part, int parts) {
    const bool issue = k_tile < k_tiles;
    if (part == 0) {
      const int k_left = k_tile == k_tiles - 1 ? k_tail : kConfig.tile_k;
      copy_a.begin_tile(slot, k_left), copy_b.begin_tile(slot + TileA::kBytes, k_left);
    }
    copy_a.copy_passes(issue, CopyA::kPasses * part / parts, CopyA::kPasses * (part + 1) / parts);
    copy_b.copy_passes(issue, CopyB::kPasses * part / parts, CopyB::kPasses * (part + 1) / parts);
    if (part == parts - 1) ptx::cp_async_commit_group();
  };
  // Makes the oldest tile in flight visible to all threads; all have finished reading the one before it.
  const auto open_next_tile = [] {
    ptx::cp_async_wait_group<kStages - 2>();
    __syncthreads();
  };

  // Prologue: fill all slots but one, and load the first fragments
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) fill(stage, ring + stage * kSlotBytes, 0, 1);
  open_next_tile();
  uint32_t read_slot = ring;
  uint32_t write_slot = ring + (kStages - 1) * kSlotBytes;
  math.load(0, read_slot, read_slot + TileA::kBytes, 0);

  // Main loop
#pragma unroll 1
  for (int k_tile = 0; k_tile < k_tiles; ++k_tile) {
#pragma unroll
    for (int slice = 0; slice < Math_::kSlices; ++slice) {
      if (slice == Math_::kSlices - 1) {
        open_next_tile();
        read_slot = next_slot(read_slot);
      }
      math.load((slice + 1) % 2, read_slot, read_slot + TileA::kBytes, (slice + 1) % Math_::kSlices);
      math.multiply(slice % 2, [&] {
        const int part = slice / kFillEvery;
        if (slice % kFillEvery == 0 && part < kFillParts) {
          fill(k_tile + kStages - 1, write_slot, part, kFillParts);
        }
      });
    }
    write_slot = next_slot(write_slot);
  }

  // Epilogue
  ptx::cp_async_wait_group<0>();
  __syncthreads();
  const int64_t offset = batch_offset(args.out_batch_stride_bytes, args, tile.batch) +
                         m0 * args.out_ld_bytes + n0 * dtype_bytes(args.out_type);
  const OutputTile out{args.out + offset, args.out_ld_bytes, clamp_to_tile(args.m - m0, kConfig.tile_m),
                       clamp_to_tile(args.n - n0, kConfig.tile_n), args.out_aligned};
  if (kOperandType == DType::kF32 || args.out_type == DType::kF32) {
    write_output<DType::kF32, kConfig.tile_m, kConfig.tile_n, kThreads>(math, ring, out, thread);
  } else {
    write_output<kOperandType, kConfig.tile_m, kConfig.tile_n, kThreads>(math, ring, out, thread);
  }
}

}  // namespace jax_gemm::sm80
