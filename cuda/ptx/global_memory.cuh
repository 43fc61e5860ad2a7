// Loads from and stores to global memory.
#pragma once

#include <cstdint>

namespace jax_gemm::ptx {

// A copy of a pointer whose origin the compiler cannot see, so that it stays a register of its own instead of
// being recomputed from another pointer.
__device__ __forceinline__ const char* mov_b64(const char* pointer) {
  uint64_t result;
  asm volatile("mov.b64 %0, %1;" : "=l"(result) : "l"(pointer));
  return reinterpret_cast<const char*>(result);
}

__device__ __forceinline__ uint16_t ld_global_b16(const void* global) {
  uint16_t value;
  asm volatile("ld.global.nc.b16 %0, [%1];" : "=h"(value) : "l"(global));
  return value;
}

__device__ __forceinline__ void st_global_b16(void* global, uint16_t value) {
  asm volatile("st.global.b16 [%0], %1;" ::"l"(global), "h"(value) : "memory");
}

__device__ __forceinline__ void st_global_b32(void* global, uint32_t value) {
  asm volatile("st.global.b32 [%0], %1;" ::"l"(global), "r"(value) : "memory");
}

__device__ __forceinline__ void st_global_v4(void* global, uint4 value) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(global), "r"(value.x), "r"(value.y),
               "r"(value.z), "r"(value.w)
               : "memory");
}

}  // namespace jax_gemm::ptx
