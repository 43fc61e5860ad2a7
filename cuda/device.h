// Facts about devices: what the choice of a configuration depends on, and nothing else.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "export.h"
#include "gemm.h"
#include "status.h"

namespace jax_gemm {

inline constexpr int kMaxDevices = 64;  // of one process: ordinals below this are served

struct DeviceFacts {
  std::string name;
  int major, minor;  // compute capability
  int sm_count;
  int shared_bytes_per_block;  // the most that a kernel can opt in to
  int shared_bytes_per_sm;
  int registers_per_sm;
  int threads_per_sm;
  int64_t l2_bytes;
  double clock_ghz;
  double bandwidth_gbs;  // of device memory, as specified
  double latency_us;     // of a load that misses every cache
  bool half_rate;        // tensor cores accumulate in f32 at half their rate (GeForce)
};

// What the instructions of this library can issue on the device (mma.sync, or FFMA for kF32),
// dense.
JAX_GEMM_API double peak_tflops(const DeviceFacts& device, Math math);

// A few devices by short name ("h200"), to plan for without having one.
JAX_GEMM_API std::span<const DeviceFacts> known_devices();

// Facts of a device that is present; queried once, valid for the life of the process.
JAX_GEMM_API Status device_facts(int ordinal, const DeviceFacts** facts);

// Number of usable CUDA devices: 0 without a driver.
JAX_GEMM_API int device_count();

// CUDART_VERSION that the library was built with, e.g. 13000.
JAX_GEMM_API int cuda_version();

}  // namespace jax_gemm
