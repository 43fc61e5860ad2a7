// From a configuration to its kernels: what every instances_*.cu instantiates.
#pragma once

#include <cuda_runtime.h>

#include <array>
#include <utility>

#include "../configs.h"
#include "../status.h"
#include "instances.h"
#include "kernel.cuh"

namespace jax_gemm::sm80 {

template <int kConfigIndex, bool kWhole>
constexpr KernelsByMajors kernels_by_majors() {
  return {{{gemm_kernel<kConfigIndex, Major::kK, Major::kK, kWhole>,
            gemm_kernel<kConfigIndex, Major::kK, Major::kMN, kWhole>},
           {gemm_kernel<kConfigIndex, Major::kMN, Major::kK, kWhole>,
            gemm_kernel<kConfigIndex, Major::kMN, Major::kMN, kWhole>}}};
}

template <int kConfigIndex>
constexpr ConfigKernels config_kernels() {
  ConfigKernels kernels{kConfigs[kConfigIndex], kernels_by_majors<kConfigIndex, true>(), {}};
  if constexpr (kConfigs[kConfigIndex].any_alignment) {
    kernels.any_alignment = kernels_by_majors<kConfigIndex, false>();
  }
  return kernels;
}

constexpr bool is_instance(const GemmConfig& config, Math math) {
  return config.family == Family::kSm80 && config.math == math;
}

template <Math kMath>
constexpr int instance_count() {
  int count = 0;
  for (const GemmConfig& config : kConfigs) count += is_instance(config, kMath);
  return count;
}

// The index in kConfigs of the `i`-th configuration of this family and math.
template <Math kMath>
constexpr int instance_index(int i) {
  for (int index = 0;; ++index) {
    if (is_instance(kConfigs[index], kMath) && i-- == 0) return index;
  }
}

// The kernels of every configuration of the table with this math.
template <Math kMath>
std::span<const ConfigKernels> make_instances() {
  static constexpr auto kTable = []<int... kI>(std::integer_sequence<int, kI...>) {
    return std::array{config_kernels<instance_index<kMath>(kI)>()...};
  }(std::make_integer_sequence<int, instance_count<kMath>()>());
  return kTable;
}

}  // namespace jax_gemm::sm80
