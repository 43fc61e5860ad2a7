// cp.async: copies from global to shared memory that bypass the register file.
#pragma once

#include <cstdint>

namespace jax_gemm::ptx {

// A shared-memory address as instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Copies `source_bytes` of 16 and fills the rest with zeros; at 0 nothing is read. Caches in L2 only.
__device__ __forceinline__ void cp_async_cg_16(uint32_t shared, const void* global, int source_bytes) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(source_bytes)
               : "memory");
}

// If `issue`: copies 16 bytes, or writes 16 zeros and reads nothing if `ignore_source`. Cheaper than a count
// of bytes, which the machine has to emulate, and than a branch.
__device__ __forceinline__ void cp_async_cg_16_if(bool issue, uint32_t shared, const void* global,
                                                  bool ignore_source) {
  asm volatile(
      "{\n"
      ".reg .pred issue, ignore;\n"
      "setp.ne.b32 issue, %2, 0;\n"
      "setp.ne.b32 ignore, %3, 0;\n"
      "@issue cp.async.cg.shared.global.L2::128B [%0], [%1], 16, ignore;\n"
      "}\n" ::"r"(shared),
      "l"(global), "r"(static_cast<int>(issue)), "r"(static_cast<int>(ignore_source))
      : "memory");
}

// The same for 4 bytes.
__device__ __forceinline__ void cp_async_ca_4_if(bool issue, uint32_t shared, const void* global,
                                                 bool ignore_source) {
  asm volatile(
      "{\n"
      ".reg .pred issue, ignore;\n"
      "setp.ne.b32 issue, %2, 0;\n"
      "setp.ne.b32 ignore, %3, 0;\n"
      "@issue cp.async.ca.shared.global [%0], [%1], 4, ignore;\n"
      "}\n" ::"r"(shared),
      "l"(global), "r"(static_cast<int>(issue)), "r"(static_cast<int>(ignore_source))
      : "memory");
}

// As cp_async_cg_16 for pieces of 8 or 4 bytes, which only the form that also caches in L1 allows.
template <int kBytes>
__device__ __forceinline__ void cp_async_ca(uint32_t shared, const void* global, int source_bytes) {
  static_assert(kBytes == 8 || kBytes == 4);
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(shared), "l"(global), "n"(kBytes),
               "r"(source_bytes)
               : "memory");
}

// Closes the group of all copies issued by this thread since the last one; it may be empty.
__device__ __forceinline__ void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most `kPending` of this thread's newest groups are still in flight.
template <int kPending>
__device__ __forceinline__ void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace jax_gemm::ptx
