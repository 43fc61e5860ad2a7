// THE table of kernel configurations. A tile size is written here and nowhere else: the instances, the
// choice, the tests and the listings all read this table. To add a configuration, add a line.
#pragma once

#include "gemm.h"

namespace jax_gemm {

inline constexpr GemmConfig kConfigs[] = {
    // family,      math,       block tile,    warp tile, stages, any_alignment
    {Family::kSm80, Math::kBF16, 128, 256, 64, 64, 64, 3, false},
    {Family::kSm80, Math::kBF16, 128, 128, 64, 64, 64, 3, true},
    {Family::kSm80, Math::kBF16, 64, 64, 64, 32, 32, 4, true},

    {Family::kSm80, Math::kF16, 128, 256, 64, 64, 64, 3, false},
    {Family::kSm80, Math::kF16, 128, 128, 64, 64, 64, 3, true},
    {Family::kSm80, Math::kF16, 64, 64, 64, 32, 32, 4, true},

    {Family::kSm80, Math::kTF32, 128, 256, 32, 64, 64, 3, false},
    {Family::kSm80, Math::kTF32, 128, 128, 32, 64, 64, 3, true},
    {Family::kSm80, Math::kTF32, 64, 64, 32, 32, 32, 4, true},

    {Family::kSm80, Math::kF32, 128, 128, 16, 32, 64, 4, true},
    {Family::kSm80, Math::kF32, 64, 128, 16, 32, 64, 3, true},
};

}  // namespace jax_gemm
