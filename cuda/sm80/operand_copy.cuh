// Copies one operand's tiles from global memory into the ring, chunk by chunk, with zeros for whatever lies
// outside the operand.
#pragma once

#include <cstdint>

#include "../common/swizzle.cuh"
#include "../gemm.h"
#include "../ptx/cp_async.cuh"
#include "../ptx/global_memory.cuh"
#include "../ptx/shared_memory.cuh"

namespace jax_gemm::sm80 {

// An operand's tile: rows of K for a K-major operand, rows of M or N for an MN-major one.
template <int kElementBytes, int kTileMn, int kTileK, Major kMajor, Swizzle kSwizzle>
using OperandTile =
    std::conditional_t<kMajor == Major::kK, SwizzledTile<kTileMn, kTileK * kElementBytes, kSwizzle>,
                       SwizzledTile<kTileK, kTileMn * kElementBytes, kSwizzle>>;

// Thread t copies chunk t % kRowChunks of the rows t / kRowChunks + i * kRowsPerPass: neighbours write
// neighbouring chunks of a row, in whatever order the swizzle puts them, so no two meet in a bank.
//
// `kWhole`: every chunk lies wholly inside or outside the operand and on a 16-byte boundary, which spares the
// inner loop all but a predicate.
template <class Tile, int kElementBytes, Major kMajor, int kThreads, bool kWhole>
class OperandCopy {
 public:
  static constexpr int kPasses = Tile::kRows * Tile::kRowChunks / kThreads;

  // `data` points to the operand's matrix of this batch, `mn_extent` is the size of its kept axis, and the
  // tiles begin at element `mn_origin` of that.
  __device__ OperandCopy(const char* data, int64_t ld_bytes, int copy_bytes, int64_t mn_extent,
                         int64_t mn_origin, int thread)
      : copy_bytes_(copy_bytes) {
    row_ = thread / Tile::kRowChunks;
    const int chunk = thread % Tile::kRowChunks;
    column_ = chunk * kChunkElements;
    mn_left_ = clamp(mn_extent - mn_origin, kTileMn);
    const int64_t row = row_ + (kMajor == Major::kK ? mn_origin : 0);
    const int64_t column = column_ + (kMajor == Major::kK ? 0 : mn_origin);
    pass_step_ = kRowsPerPass * ld_bytes;
    tile_step_ = kMajor == Major::kK ? Tile::kRowBytes : Tile::kRows * ld_bytes;
#pragma unroll
    for (int i = 0; i < kPointers; ++i) {
      source_[i] =
          ptx::mov_b64(data + (row * ld_bytes + column * kElementBytes) + i * pass_step_ - tile_step_);
    }
    offset_ = Tile::offset(row_, chunk);
  }

  // Sets out on the next tile, of which `k_left` lie inside the operand, into the slot at shared address
  // `slot`. Its copies come in kPasses passes, any number at a time.
  __device__ __forceinline__ void begin_tile(uint32_t slot, int k_left) {
    destination_ = slot + offset_;
    const int rows = (kMajor == Major::kK ? mn_left_ : k_left) - row_;
    const int columns = (kMajor == Major::kK ? k_left : mn_left_) - column_;
    rows_left_ = columns > 0 ? rows : 0;
    row_bytes_ = columns < kChunkElements ? columns * kElementBytes : kChunkBytes;
  }

  // Issues passes `begin` to `end` of this tile's copies, or none if not `issue`, and moves on past them.
  __device__ __forceinline__ void copy_passes(bool issue, int begin, int end) {
    // The code for partial chunks is long: rolled up, it leaves the registers to the accumulators.
#pragma unroll(kWhole ? kPasses : 1)
    for (int i = begin; i < end; ++i) {
      // The swizzle repeats every kRowsPerPass rows (checked below), so the destination moves linearly.
      const uint32_t destination = destination_ + i * kRowsPerPass * Tile::kRowStride;
      const bool inside = i * kRowsPerPass < rows_left_;
      if constexpr (kWhole) {
        source_[i] += tile_step_;
        ptx::cp_async_cg_16_if(issue, destination, source_[i], !inside);
      } else {
        if (i == 0) source_[0] += tile_step_;
        if (issue) copy_chunk(destination, source_[0] + i * pass_step_, inside ? row_bytes_ : 0);
      }
    }
  }

 private:
  static constexpr int kChunkElements = kChunkBytes / kElementBytes;
  static constexpr int kColumns = Tile::kRowBytes / kElementBytes;
  static constexpr int kTileK = kMajor == Major::kK ? kColumns : Tile::kRows;
  static constexpr int kTileMn = kMajor == Major::kK ? Tile::kRows : kColumns;
  static constexpr int kRowsPerPass = kThreads / Tile::kRowChunks;
  // A copy may take long to read its address registers, and until then they cannot be overwritten. With a
  // pointer for each pass, moved on just before its next use a whole tile later, no copy waits for another.
  static constexpr int kPointers = kWhole ? kPasses : 1;
  static_assert(kThreads % Tile::kRowChunks == 0 && Tile::kRows % kRowsPerPass == 0);
  static_assert(Tile::offset(kRowsPerPass, 0) == kRowsPerPass * Tile::kRowStride &&
                    Tile::offset(kRowsPerPass + 1, 1) == kRowsPerPass * Tile::kRowStride + Tile::offset(1, 1),
                "the swizzle must repeat with the passes");

  __device__ __forceinline__ static int clamp(int64_t left, int tile) {
    return left < tile ? static_cast<int>(left) : tile;
  }

  // Copies the first `bytes` of a chunk, and zeros up to its end.
  __device__ __forceinline__ void copy_chunk(uint32_t destination, const char* source, int bytes) const {
    if (copy_bytes_ == 16) {
      ptx::cp_async_cg_16(destination, source, bytes);
    } else if (copy_bytes_ == 8) {
      copy_pieces<8>(destination, source, bytes);
    } else if (copy_bytes_ == 4) {
      copy_pieces<4>(destination, source, bytes);
    } else {
      copy_elements(destination, source, bytes);
    }
  }

  template <int kPiece>
  __device__ __forceinline__ static void copy_pieces(uint32_t destination, const char* source, int bytes) {
#pragma unroll
    for (int offset = 0; offset < kChunkBytes; offset += kPiece) {
      const int left = bytes - offset;
      ptx::cp_async_ca<kPiece>(destination + offset, source + offset,
                               left < 0        ? 0
                               : left < kPiece ? left
                                               : kPiece);
    }
  }

  // 16-bit elements at odd addresses of 2 bytes: no asynchronous copy is that narrow. The barrier that
  // opens the tile orders this store too.
  __device__ __forceinline__ static void copy_elements(uint32_t destination, const char* source, int bytes) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32_t low = 4 * i < bytes ? ptx::ld_global_b16(source + 4 * i) : 0;
      const uint32_t high = 4 * i + 2 < bytes ? ptx::ld_global_b16(source + 4 * i + 2) : 0;
      words[i] = low | high << 16;
    }
    ptx::st_shared_v4(destination, {words[0], words[1], words[2], words[3]});
  }

  const char* source_[kPointers];  // this thread's chunk in each pass (or the first) of the tile before
  int64_t pass_step_;              // bytes from one pass to the next
  int64_t tile_step_;              // bytes from one tile to the next
  int mn_left_;                    // of the operand, from the tile's origin on, at most a tile
  int row_, column_;               // of this thread's first chunk in the tile
  int rows_left_;                  // of the operand in this tile, from this thread's first row on
  int row_bytes_;                  // of a chunk that lie inside the operand
  int offset_;                     // of this thread's first chunk in a slot
  uint32_t destination_;           // shared address of this thread's first chunk in this tile
  int copy_bytes_;
};

// Copies a K-major operand of 32-bit elements into tiles of K rows, element by element: the transposition
// that lets FFMA read fragments along M or N costs the copies alone, and any alignment will do.
//
// Lane (r, k) of a warp copies elements k + 8 g of rows r + 4 h: eight successive elements of four rows,
// which are whole sectors of global memory and meet every bank of shared memory once.
template <class Tile, int kThreads>
class TransposingCopy {
 public:
  static constexpr int kPasses = Tile::kRows * Tile::kRowBytes / 4 / kThreads;

  __device__ TransposingCopy(const char* data, int64_t ld_bytes, int /*copy_bytes*/, int64_t mn_extent,
                             int64_t mn_origin, int thread)
      : row_step_(kRowsPerPass * ld_bytes) {
    const int row = thread / kLanesK;
    k_ = thread % kLanesK;
    const int64_t left = mn_extent - mn_origin - row;
    rows_left_ = left < kTileMn ? static_cast<int>(left) : kTileMn;
    source_ = data + (mn_origin + row) * ld_bytes + k_ * kElementBytes;
    offset_ = Tile::offset(k_, row / kChunkElements) + row % kChunkElements * kElementBytes;
  }

  __device__ __forceinline__ void begin_tile(uint32_t slot, int k_left) {
    destination_ = slot + offset_;
    k_left_ = k_left - k_;
  }

  __device__ __forceinline__ void copy_passes(bool issue, int begin, int end) {
#pragma unroll
    for (int i = begin; i < end; ++i) {
      const int g = i % kPassesK, h = i / kPassesK;
      const bool inside = g * kLanesK < k_left_ && h * kRowsPerPass < rows_left_;
      const uint32_t destination =
          destination_ + Tile::offset(g * kLanesK, h * kRowsPerPass / kChunkElements);
      ptx::cp_async_ca_4_if(issue, destination, source_ + h * row_step_ + g * kLanesK * kElementBytes,
                            !inside);
    }
    if (end == kPasses) source_ += kTileK * kElementBytes;
  }

 private:
  static constexpr int kElementBytes = 4;
  static constexpr int kChunkElements = kChunkBytes / kElementBytes;
  static constexpr int kTileK = Tile::kRows;
  static constexpr int kTileMn = Tile::kRowBytes / kElementBytes;
  static constexpr int kLanesK = 8;
  static constexpr int kPassesK = kTileK / kLanesK;
  static constexpr int kRowsPerPass = kThreads / kLanesK;
  static_assert(kTileK % kLanesK == 0 && kTileMn % kRowsPerPass == 0 && kRowsPerPass % kChunkElements == 0);

  const char* source_;    // this thread's first element of the next tile
  int64_t row_step_;      // bytes from one row of this thread to the next
  int k_;                 // of this thread's first element in the tile
  int rows_left_;         // of the operand, from this thread's first row on, at most a tile
  int k_left_;            // of the operand in this tile, from this thread's first element on
  int offset_;            // of this thread's first element in a slot
  uint32_t destination_;  // shared address of this thread's first element in this tile
};

}  // namespace jax_gemm::sm80
