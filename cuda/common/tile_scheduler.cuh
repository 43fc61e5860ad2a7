// Which output tile a block computes: batch by batch, and inside each batch in groups of tile rows, so that
// the blocks in flight share their operands in L2.
#pragma once

#include <cstdint>

namespace jax_gemm {

struct TileCoordinate {
  uint32_t batch;
  uint32_t m, n;  // in tiles
};

// `group_m` is the height of a group in tiles, at most `tiles_m`. The products fit in 32 bits because the
// whole grid does.
__host__ __device__ inline TileCoordinate tile_of_block(uint32_t block, uint32_t tiles_m, uint32_t tiles_n,
                                                        uint32_t group_m) {
  const uint32_t tiles = tiles_m * tiles_n;
  const uint32_t batch = block / tiles;
  const uint32_t tile = block - batch * tiles;
  const uint32_t group = tile / (group_m * tiles_n);
  const uint32_t in_group = tile - group * (group_m * tiles_n);
  const uint32_t first_m = group * group_m;
  const uint32_t height = tiles_m - first_m < group_m ? tiles_m - first_m : group_m;  // the last may be lower
  return {batch, first_m + in_group % height, in_group / height};
}

}  // namespace jax_gemm
