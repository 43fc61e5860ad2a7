// The product as JAX states it, an einsum over dense row-major arrays, brought into the kernels'
// form without copying anything. Host only, no CUDA.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "export.h"
#include "gemm.h"
#include "status.h"

namespace jax_gemm {

// E.g. "abc,acd->abd": one character a dimension, each at most once in an array. A label is
//   batch       in a, b and out (sizes may be 1 against n: that operand is repeated, not copied),
//   contracted  in a and b only,
//   kept        in out and one operand only: M if that is a, N if it is b.
struct Contraction {
  std::string_view spec;
  std::span<const int64_t> a_shape, b_shape;
  const void* a;  // never read here; null is allowed
  const void* b;
  void* out;
  Math math;
  DType out_type;
};

// The shape of `out`, or why the contraction is not one.
JAX_GEMM_API Status output_shape(const Contraction& c, std::vector<int64_t>* shape);

// The kernels' form of `c`, or why the operands cannot be read in place. Dimensions of size 1
// vanish and neighbours that are one stride apart are joined, so that a batch which one operand
// lacks becomes part of the other's M or N: that is the fast form. Kept labels that cannot join
// become batch dimensions. `swapped` (may be null) tells that out's contiguous axis belongs to `a`,
// so that problem->a is `c.b`.
JAX_GEMM_API Status make_problem(const Contraction& c, GemmProblem* problem, bool* swapped = nullptr);

// The multiplication for operands of this type at "default" or "highest" precision.
JAX_GEMM_API Status math_for(DType operands, std::string_view precision, Math* math);

// "(4,1,3)"
JAX_GEMM_API std::string shape_string(std::span<const int64_t> shape);

}  // namespace jax_gemm
