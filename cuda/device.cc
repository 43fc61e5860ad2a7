#include "device.h"

#include <cuda_runtime_api.h>

#include <array>
#include <mutex>

namespace jax_gemm {
namespace {

constexpr double kLoadLatencyUs = 0.7;  // device memory, Ampere and Hopper, under moderate load

// Fused multiply-adds a clock and SM, dense. From NVIDIA's architecture papers (A100; GA102; AD102;
// Blackwell RTX), where tf32 has half the rate of f16. Exception: 9.0, whose papers state what
// wgmma reaches; mma.sync was measured on an H200 at 631 (bf16) and 324 (tf32) TFLOP/s, 132 SMs
// at 1.98 GHz.
double tensor_fma_per_clock(const DeviceFacts& device, bool tf32) {
  const int capability = device.major * 10 + device.minor;
  if (capability == 90) return tf32 ? 620 : 1207;
  const double f16 = capability == 80 || device.major == 10 ? 1024 : device.half_rate ? 256 : 512;
  return tf32 ? f16 / 2 : f16;
}

double ffma_per_clock(const DeviceFacts& device) { return device.major == 8 && device.minor == 0 ? 64 : 128; }

int attribute(cudaDeviceAttr which, int ordinal, cudaError_t* error) {
  int value = 0;
  const cudaError_t result = cudaDeviceGetAttribute(&value, which, ordinal);
  if (result != cudaSuccess) *error = result;
  return value;
}

Status query(int ordinal, DeviceFacts* facts) {
  cudaDeviceProp properties;
  JAX_GEMM_RETURN_IF_CUDA_ERROR(cudaGetDeviceProperties(&properties, ordinal));
  cudaError_t error = cudaSuccess;
  const auto get = [&](cudaDeviceAttr which) { return attribute(which, ordinal, &error); };
  facts->name = properties.name;
  facts->major = properties.major;
  facts->minor = properties.minor;
  facts->sm_count = properties.multiProcessorCount;
  facts->shared_bytes_per_block = get(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  facts->shared_bytes_per_sm = get(cudaDevAttrMaxSharedMemoryPerMultiprocessor);
  facts->registers_per_sm = get(cudaDevAttrMaxRegistersPerMultiprocessor);
  facts->threads_per_sm = get(cudaDevAttrMaxThreadsPerMultiProcessor);
  facts->l2_bytes = get(cudaDevAttrL2CacheSize);
  facts->clock_ghz = get(cudaDevAttrClockRate) * 1e-6;
  // Two transfers a clock of the memory; bits to bytes; kHz to GB/s.
  facts->bandwidth_gbs =
      2.0 * get(cudaDevAttrMemoryClockRate) * get(cudaDevAttrGlobalMemoryBusWidth) / 8 * 1e-6;
  facts->latency_us = kLoadLatencyUs;
  facts->half_rate = facts->name.find("GeForce") != std::string::npos;
  JAX_GEMM_RETURN_IF_CUDA_ERROR(error);
  return {};
}

struct Slot {
  std::once_flag once;
  Status status;
  DeviceFacts facts;
};

}  // namespace

double peak_tflops(const DeviceFacts& device, Math math) {
  const double fma =
      math == Math::kF32 ? ffma_per_clock(device) : tensor_fma_per_clock(device, math == Math::kTF32);
  return 2 * fma * device.sm_count * device.clock_ghz * 1e-3;
}

std::span<const DeviceFacts> known_devices() {
  // Data sheets; the limits of shared memory from the CUDA programming guide's table of
  // capabilities.
  static const std::array<DeviceFacts, 4> devices{{
      // name, capability, SMs, shared memory (block, SM), registers, threads, L2, GHz, GB/s, us,
      // half rate
      {"h200", 9, 0, 132, 232448, 233472, 65536, 2048, 52428800, 1.98, 4800, kLoadLatencyUs, false},
      {"h100", 9, 0, 132, 232448, 233472, 65536, 2048, 52428800, 1.98, 3350, kLoadLatencyUs, false},
      {"a100", 8, 0, 108, 166912, 167936, 65536, 2048, 41943040, 1.41, 2039, kLoadLatencyUs, false},
      {"rtx3060", 8, 6, 28, 101376, 102400, 65536, 1536, 3145728, 1.777, 360, kLoadLatencyUs, true},
  }};
  return devices;
}

Status device_facts(int ordinal, const DeviceFacts** facts) {
  static std::array<Slot, kMaxDevices> slots;
  if (ordinal < 0 || ordinal >= kMaxDevices) {
    return {StatusCode::kInvalidArgument, "jax_gemm: there is no CUDA device " + std::to_string(ordinal)};
  }
  Slot& slot = slots[ordinal];
  std::call_once(slot.once, [&] { slot.status = query(ordinal, &slot.facts); });
  if (!slot.status.ok()) {
    return {slot.status.code(), "jax_gemm: cannot query CUDA device " + std::to_string(ordinal) + " of " +
                                    std::to_string(device_count()) + ": " + slot.status.message()};
  }
  *facts = &slot.facts;
  return {};
}

int device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess) {
    (void)cudaGetLastError();  // no driver or no device is an answer here, not an error to remember
    return 0;
  }
  return count;
}

int cuda_version() { return CUDART_VERSION; }

}  // namespace jax_gemm
