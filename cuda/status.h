// Status: how every C++ function of the library reports failure. Nothing throws, aborts or prints.
#pragma once

#include <string>
#include <utility>

namespace jax_gemm {

enum class StatusCode {
  kOk,
  kInvalidArgument,    // the call cannot be served as it stands: shapes, strides, an unknown configuration
  kUnimplemented,      // no kernel of this build serves it on this device
  kResourceExhausted,  // the device lacks shared memory or grid range for it
  kInternal,           // a CUDA call failed
};

class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}

  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
};

}  // namespace jax_gemm

// Returns the Status of `expr` from the enclosing function unless it is ok.
#define JAX_GEMM_RETURN_IF_ERROR(expr)   \
  do {                                   \
    ::jax_gemm::Status status_ = (expr); \
    if (!status_.ok()) return status_;   \
  } while (false)

// Returns a Status from the enclosing function unless the CUDA runtime call `expr` succeeds. The call's
// own return value is judged: cudaGetLastError() may report somebody else's earlier failure.
#define JAX_GEMM_RETURN_IF_CUDA_ERROR(expr)                                                     \
  do {                                                                                          \
    cudaError_t error_ = (expr);                                                                \
    if (error_ != cudaSuccess) {                                                                \
      return ::jax_gemm::Status(::jax_gemm::StatusCode::kInternal,                              \
                                std::string(#expr) + " failed: " + cudaGetErrorString(error_)); \
    }                                                                                           \
  } while (false)
