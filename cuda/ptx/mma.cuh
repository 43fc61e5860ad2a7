// mma.sync: a warp's product of two register fragments, accumulated in f32. c += a b.
#pragma once

#include <cstdint>

namespace jax_gemm::ptx {

// The three shapes differ in their name and operand type alone, and a string cannot be a template
// argument of asm: hence the macro, gone at the end of this file.
#define JAX_GEMM_MMA(NAME, INSTRUCTION)                                                                 \
  __device__ __forceinline__ void NAME(float (&c)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) { \
    asm volatile(INSTRUCTION " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"         \
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                                       \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                   \
  }

JAX_GEMM_MMA(mma_m16n8k16_bf16, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32")
JAX_GEMM_MMA(mma_m16n8k16_f16, "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32")
JAX_GEMM_MMA(mma_m16n8k8_tf32, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32")

#undef JAX_GEMM_MMA

}  // namespace jax_gemm::ptx
