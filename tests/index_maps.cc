// Checks of the kernels' index maps that need no GPU: every output tile is computed once, every chunk has a
// place of its own, and what one access of a warp meets lies in different banks. Compiled and run by
// test_index_maps.py; prints what is wrong, exits with the number of faults.
#define __host__
#define __device__

#include <cstdio>
#include <set>
#include <tuple>
#include <vector>

#include "common/swizzle.cuh"
#include "common/tile_scheduler.cuh"

namespace {

using namespace jax_gemm;

int faults = 0;

void expect(bool condition, const char* what, int x, int y) {
  if (condition) return;
  std::printf("%s (%d, %d)\n", what, x, y);
  ++faults;
}

void check_scheduler(uint32_t tiles_m, uint32_t tiles_n, uint32_t group_m) {
  constexpr uint32_t kBatches = 3;
  std::set<std::tuple<uint32_t, uint32_t, uint32_t>> seen;
  for (uint32_t block = 0; block < kBatches * tiles_m * tiles_n; ++block) {
    const TileCoordinate tile = tile_of_block(block, tiles_m, tiles_n, group_m);
    expect(tile.batch < kBatches && tile.m < tiles_m && tile.n < tiles_n, "tile outside", tiles_m, tiles_n);
    expect(seen.insert({tile.batch, tile.m, tile.n}).second, "tile twice", tiles_m, tiles_n);
    // Blocks of one group follow each other: a group's rows are done before the next begins.
    const uint32_t in_batch = block % (tiles_m * tiles_n);
    expect(tile.m / group_m == in_batch / (group_m * tiles_n), "out of its group", tiles_m, group_m);
  }
}

// A group of accesses that are served at once must meet each of the 8 chunks of 4 banks at most once.
class Banks {
 public:
  void access(int offset) { distinct_ &= used_.insert(offset / kChunkBytes % kBankChunks).second; }
  bool distinct() const { return distinct_; }

 private:
  std::set<int> used_;
  bool distinct_ = true;
};

template <class Tile>
void check_places() {
  std::vector<bool> used(Tile::kBytes / kChunkBytes);
  for (int row = 0; row < Tile::kRows; ++row) {
    for (int chunk = 0; chunk < Tile::kRowChunks; ++chunk) {
      const int offset = Tile::offset(row, chunk);
      expect(offset % kChunkBytes == 0 && offset / Tile::kRowStride == row, "chunk outside its row", row,
             chunk);
      expect(!used[offset / kChunkBytes], "two chunks in one place", row, chunk);
      used[offset / kChunkBytes] = true;
    }
  }
  // Copies: 8 neighbouring threads write 8 neighbouring chunks, of one row or of several short ones.
  for (int first = 0; first < Tile::kRows * Tile::kRowChunks; first += kBankChunks) {
    Banks banks;
    for (int i = first; i < first + kBankChunks; ++i)
      banks.access(Tile::offset(i / Tile::kRowChunks, i % Tile::kRowChunks));
    expect(banks.distinct(), "copies conflict", Tile::kRowBytes, first);
  }
}

// `rows` rows `step` apart, in each `chunks` chunks `chunk_step` apart; from every row and chunk that fits.
template <class Tile>
void check_access(int rows, int step, int chunks, int chunk_step) {
  check_places<Tile>();
  const int aligned_rows = rows * step;
  const int aligned_chunks = chunks * chunk_step;
  for (int row = 0; row + (rows - 1) * step < Tile::kRows; ++row) {
    if (row % aligned_rows >= step) continue;  // rows of a group: row, row + step, ... in its aligned block
    for (int chunk = 0; chunk + (chunks - 1) * chunk_step < Tile::kRowChunks; ++chunk) {
      if (chunk % aligned_chunks >= chunk_step) continue;
      Banks banks;
      for (int r = 0; r < rows; ++r) {
        for (int c = 0; c < chunks; ++c) banks.access(Tile::offset(row + r * step, chunk + c * chunk_step));
      }
      expect(banks.distinct(), "access conflicts", row, chunk);
    }
  }
}

template <int kRowBytes>
void check_swizzles() {
  constexpr int kChunks = kRowBytes / kChunkBytes;
  check_access<SwizzledTile<64, kRowBytes, swizzle_eight_rows_of(kChunks)>>(8, 1, 1, 1);
  if constexpr (kChunks >= kBankChunks) {
    check_access<SwizzledTile<64, kRowBytes, swizzle_eight_rows()>>(8, 1, 1, 1);
    check_access<SwizzledTile<64, kRowBytes, swizzle_eight_rows(2)>>(8, 2, 1, 1);
    check_access<SwizzledTile<64, kRowBytes, swizzle_four_rows_of_chunk_pairs()>>(4, 1, 2, 1);
    check_access<SwizzledTile<64, kRowBytes, swizzle_four_rows_of_chunk_pairs(4)>>(4, 4, 2, 1);
    check_access<SwizzledTile<64, kRowBytes, swizzle_two_rows_of_four_chunks()>>(2, 1, 4, 1);
    check_access<SwizzledTile<64, kRowBytes, swizzle_two_rows_of_four_chunks(4)>>(2, 4, 4, 1);
    check_access<SwizzledTile<64, kRowBytes, swizzle_two_rows_of_even_chunks()>>(2, 1, 4, 2);
    check_access<SwizzledTile<64, kRowBytes, swizzle_two_rows_of_even_chunks(4)>>(2, 4, 4, 2);
    check_access<SwizzledTile<64, kRowBytes, kNoSwizzle>>(1, 1, 8, 1);
  }
}

// Rows of K, padded: a row is read 8 chunks at a time, and 4 rows of M or N are written, 8 of K at once,
// element by element.
template <int kRowBytes>
void check_padded() {
  using Tile = PaddedTile<16, kRowBytes>;
  check_access<Tile>(1, 1, 8, 1);
  for (int k = 0; k + 8 <= Tile::kRows; k += 8) {
    for (int mn = 0; mn < kRowBytes / 4; mn += 4) {
      std::set<int> banks;
      for (int lane = 0; lane < 32; ++lane) {
        const int row = mn + lane / 8;
        banks.insert((Tile::offset(k + lane % 8, row / 4) + row % 4 * 4) / 4 % 32);
      }
      expect(banks.size() == 32, "transposing copies conflict", k, mn);
    }
  }
}

}  // namespace

int main() {
  for (uint32_t tiles_m : {1, 2, 7, 16, 33}) {
    for (uint32_t tiles_n : {1, 3, 16, 50}) {
      for (uint32_t group_m = 1; group_m <= tiles_m; ++group_m) check_scheduler(tiles_m, tiles_n, group_m);
    }
  }
  check_swizzles<64>();
  check_swizzles<128>();
  check_swizzles<256>();
  check_swizzles<512>();
  check_swizzles<1024>();
  check_padded<256>();
  check_padded<512>();
  return faults != 0;
}
