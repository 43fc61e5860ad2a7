// The compiled kernels, one list for each math, each in a translation unit of its own.
#pragma once

#include <span>

#include "../gemm.h"
#include "kernel_args.h"

namespace jax_gemm::sm80 {

using Kernel = void (*)(KernelArgs);

struct KernelsByMajors {
  Kernel kernel[2][2];  // (major of A, major of B)
};

struct ConfigKernels {
  GemmConfig config;
  KernelsByMajors whole_chunks;   // operands of whole 16-byte chunks
  KernelsByMajors any_alignment;  // null where the configuration is not built for it
};

std::span<const ConfigKernels> instances_bf16();
std::span<const ConfigKernels> instances_f16();
std::span<const ConfigKernels> instances_tf32();
std::span<const ConfigKernels> instances_f32();

}  // namespace jax_gemm::sm80
