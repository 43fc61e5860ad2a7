// Visibility of the symbols that libjax_gemm offers; all others are hidden.
#pragma once

#define JAX_GEMM_API __attribute__((visibility("default")))
