// Loads from and stores to shared memory by 32-bit address.
#pragma once

#include <cstdint>

namespace jax_gemm::ptx {

// Four 8x8 matrices of 16-bit elements; lane i gives the address of row i % 8 of matrix i / 8. Thread t
// of the warp receives elements 2 (t % 4), 2 (t % 4) + 1 of row t / 4 of each.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

// The same with each matrix transposed.
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(shared)
               : "memory");
}

__device__ __forceinline__ uint32_t ld_shared_b32(uint32_t shared) {
  uint32_t value;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(value) : "r"(shared) : "memory");
  return value;
}

__device__ __forceinline__ uint4 ld_shared_v4(uint32_t shared) {
  uint4 value;
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(value.x), "=r"(value.y), "=r"(value.z), "=r"(value.w)
               : "r"(shared)
               : "memory");
  return value;
}

__device__ __forceinline__ uint16_t ld_shared_b16(uint32_t shared) {
  uint16_t value;
  asm volatile("ld.shared.b16 %0, [%1];" : "=h"(value) : "r"(shared) : "memory");
  return value;
}

__device__ __forceinline__ void st_shared_b32(uint32_t shared, uint32_t value) {
  asm volatile("st.shared.b32 [%0], %1;" ::"r"(shared), "r"(value) : "memory");
}

__device__ __forceinline__ void st_shared_v2(uint32_t shared, uint2 value) {
  asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(shared), "r"(value.x), "r"(value.y) : "memory");
}

__device__ __forceinline__ void st_shared_v4(uint32_t shared, uint4 value) {
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(shared), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace jax_gemm::ptx
