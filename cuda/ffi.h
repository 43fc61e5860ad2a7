// What the library offers to XLA, for callers without XLA's headers.
#pragma once

#include "export.h"

extern "C" {

// The handler of the FFI target "jax_gemm_v1": an XLA_FFI_Handler*, to be registered for platform
// "CUDA". Operands a and b, result out, attributes:
//   contraction  string, e.g. "abc,acd->abd" (contraction.h)
//   precision    string, "default" or "highest"; optional
//   config       string, the name of a configuration, "" for an automatic choice; optional
// Name and attributes are the format of exported programs: a change of meaning needs a new name.
JAX_GEMM_API void* jax_gemm_v1_handler();

// Minor version of the FFI headers the handler was compiled against. A runtime with a lower one
// refuses it.
JAX_GEMM_API int jax_gemm_ffi_api_minor();

}  // extern "C"
