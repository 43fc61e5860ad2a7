// What the rest of the library may ask of the sm80 family.
#pragma once

#include <cuda_runtime_api.h>

#include "../gemm.h"
#include "../status.h"

namespace jax_gemm::sm80 {

// Loads every kernel of the family on the current device and raises its shared-memory limit, where the
// device has room for it. Called once a device, before the first launch: neither may happen inside a
// stream capture.
Status prepare();

// Enqueues the kernel of `config` for `problem`: one launch, whatever the operands' alignment. `config`
// must be legal for `problem` on the current device (select.h), which has `sm_count` multiprocessors; m, n
// and the batch must not be empty.
Status launch(const GemmProblem& problem, const GemmConfig& config, int sm_count, cudaStream_t stream);

}  // namespace jax_gemm::sm80
