// One matrix product from problem to launch.
#pragma once

#include <cuda_runtime_api.h>

#include <string_view>

#include "export.h"
#include "gemm.h"
#include "status.h"

namespace jax_gemm {

// Enqueues `problem` on `stream` of device `ordinal`, under the configuration named `requested` or,
// where that is empty, the one that select() picks. Neither allocates nor waits: fit for stream
// capture.
JAX_GEMM_API Status run(const GemmProblem& problem, std::string_view requested, int ordinal,
                        cudaStream_t stream);

}  // namespace jax_gemm
