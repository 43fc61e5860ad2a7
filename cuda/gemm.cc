#include <array>
#include <mutex>
#include <string>

#include "device.h"
#include "dispatch.h"
#include "select.h"
#include "sm80/launch.h"

namespace jax_gemm {
namespace {

// Makes a device current for a scope.
class DeviceGuard {
 public:
  Status enter(int ordinal) {
    JAX_GEMM_RETURN_IF_CUDA_ERROR(cudaGetDevice(&previous_));
    if (previous_ == ordinal) return {};
    JAX_GEMM_RETURN_IF_CUDA_ERROR(cudaSetDevice(ordinal));
    changed_ = true;
    return {};
  }
  ~DeviceGuard() {
    if (changed_) (void)cudaSetDevice(previous_);
  }

 private:
  int previous_ = 0;
  bool changed_ = false;
};

// Loads the kernels on the current device. The first call may already be inside the capture of
// another library's graph, where loading is refused unless this thread allows what the capture does
// not record.
Status prepare_relaxed() {
  cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
  JAX_GEMM_RETURN_IF_CUDA_ERROR(cudaThreadExchangeStreamCaptureMode(&mode));
  const Status prepared = sm80::prepare();
  JAX_GEMM_RETURN_IF_CUDA_ERROR(cudaThreadExchangeStreamCaptureMode(&mode));
  return prepared;
}

// Once a device: its threads in XLA call concurrently.
const Status& prepare_once(int ordinal) {
  struct Slot {
    std::once_flag once;
    Status status;
  };
  static std::array<Slot, kMaxDevices> slots;  // device_facts() has checked the ordinal
  Slot& slot = slots[ordinal];
  std::call_once(slot.once, [&] { slot.status = prepare_relaxed(); });
  return slot.status;
}

Status launch(const GemmProblem& problem, const GemmConfig& config, const DeviceFacts& device,
              cudaStream_t stream) {
  switch (config.family) {
    case Family::kSm80:
      return sm80::launch(problem, config, device.sm_count, stream);
  }
  return {StatusCode::kInternal, "unknown kernel family"};
}

// Says what was being computed where when a CUDA call failed.
Status in_context(const Status& status, const GemmProblem& problem, const DeviceFacts& device,
                  std::string_view doing) {
  if (status.ok()) return {};
  return {status.code(), "jax_gemm: " + std::string(doing) + " for " + describe(problem) + " on " +
                             device.name + ": " + status.message()};
}

}  // namespace

Status run(const GemmProblem& problem, std::string_view requested, int ordinal, cudaStream_t stream) {
  if (problem.m == 0 || problem.n == 0 || batch_size(problem) == 0) return {};

  const DeviceFacts* device = nullptr;
  const GemmConfig* config = nullptr;
  JAX_GEMM_RETURN_IF_ERROR(device_facts(ordinal, &device));
  JAX_GEMM_RETURN_IF_ERROR(select(problem, *device, requested, &config));

  DeviceGuard guard;
  JAX_GEMM_RETURN_IF_ERROR(in_context(guard.enter(ordinal), problem, *device, "making the device current"));
  JAX_GEMM_RETURN_IF_ERROR(in_context(prepare_once(ordinal), problem, *device, "loading the kernels"));
  const Status launched = launch(problem, *config, *device, stream);
  if (launched.ok()) return {};
  return in_context(launched, problem, *device, "launching " + config_name(*config));
}

}  // namespace jax_gemm
