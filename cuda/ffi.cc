// The only file that includes XLA's headers.
#include "ffi.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <exception>
#include <optional>
#include <span>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "contraction.h"
#include "dispatch.h"
#include "select.h"
#include "xla/ffi/api/ffi.h"

// The handler macro defines this symbol without a visibility of its own; the first declaration
// decides.
extern "C" JAX_GEMM_API XLA_FFI_Error* jax_gemm_v1(XLA_FFI_CallFrame* call_frame);

namespace jax_gemm {
namespace {

namespace ffi = xla::ffi;

struct Options {
  std::string_view contraction, precision = "default", config = "";
};

ffi::Error to_error(const Status& status) {
  switch (status.code()) {
    case StatusCode::kOk:
      return ffi::Error::Success();
    case StatusCode::kInvalidArgument:
      return {ffi::ErrorCode::kInvalidArgument, status.message()};
    case StatusCode::kUnimplemented:
      return {ffi::ErrorCode::kUnimplemented, status.message()};
    case StatusCode::kResourceExhausted:
      return {ffi::ErrorCode::kResourceExhausted, status.message()};
    case StatusCode::kInternal:
      return {ffi::ErrorCode::kInternal, status.message()};
  }
  return {ffi::ErrorCode::kInternal, status.message()};
}

std::optional<DType> dtype_of(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::BF16:
      return DType::kBF16;
    case ffi::DataType::F16:
      return DType::kF16;
    case ffi::DataType::F32:
      return DType::kF32;
    default:
      return std::nullopt;
  }
}

std::string type_name(ffi::DataType type) {
  std::ostringstream name;
  name << type;
  return name.str();
}

// An option that this build does not know is refused: it may change the result.
Status read_options(const ffi::Dictionary& attributes, Options* options) {
  const struct {
    const char* name;
    std::string_view* value;
    bool required;
  } known[] = {{"contraction", &options->contraction, true},
               {"precision", &options->precision, false},
               {"config", &options->config, false}};
  size_t used = 0;
  for (const auto& option : known) {
    if (!attributes.contains(option.name) && !option.required) continue;
    const ffi::ErrorOr<std::string_view> value = attributes.get<std::string_view>(option.name);
    if (value.has_error()) {
      return {StatusCode::kInvalidArgument, "jax_gemm: attribute '" + std::string(option.name) +
                                                "' must be a string: " + value.error().message()};
    }
    *option.value = *value;
    ++used;
  }
  if (used == attributes.size()) return {};
  return {StatusCode::kUnimplemented,
          "jax_gemm: the program was made by a newer jax_gemm: this one knows the attributes "
          "contraction, "
          "precision and config, and was given " +
              std::to_string(attributes.size()) + "; upgrade it"};
}

std::span<const int64_t> shape_of(const ffi::AnyBuffer& buffer) {
  const ffi::AnyBuffer::Dimensions dimensions = buffer.dimensions();
  return {dimensions.begin(), dimensions.size()};
}

Status read_types(const ffi::AnyBuffer& a, const ffi::AnyBuffer& b, const ffi::AnyBuffer& out,
                  std::string_view precision, Contraction* c) {
  const std::optional<DType> operands = dtype_of(a.element_type()), result = dtype_of(out.element_type());
  if (!operands || !result || a.element_type() != b.element_type()) {
    return {StatusCode::kUnimplemented, "jax_gemm: no kernel multiplies " + type_name(a.element_type()) +
                                            " " + shape_string(shape_of(a)) + " by " +
                                            type_name(b.element_type()) + " " + shape_string(shape_of(b)) +
                                            " to " + type_name(out.element_type()) +
                                            "; operands are both bfloat16, both float16 or both float32"};
  }
  c->out_type = *result;
  return math_for(*operands, precision, &c->math);
}

// Sizes are taken from the operands; the result's buffer must agree before anything is written to
// it.
Status check_result(const Contraction& c, const ffi::AnyBuffer& out) {
  std::vector<int64_t> expected;
  JAX_GEMM_RETURN_IF_ERROR(output_shape(c, &expected));
  const std::span<const int64_t> shape = shape_of(out);
  if (std::equal(shape.begin(), shape.end(), expected.begin(), expected.end())) return {};
  return {StatusCode::kInvalidArgument, "jax_gemm: contraction '" + std::string(c.spec) + "' of a " +
                                            shape_string(c.a_shape) + " and b " + shape_string(c.b_shape) +
                                            " has shape " + shape_string(expected) + ", the result has " +
                                            shape_string(shape)};
}

Status call(cudaStream_t stream, int32_t ordinal, const ffi::AnyBuffer& a, const ffi::AnyBuffer& b,
            const ffi::AnyBuffer& out, const ffi::Dictionary& attributes) {
  Options options;
  JAX_GEMM_RETURN_IF_ERROR(read_options(attributes, &options));
  Contraction contraction{options.contraction, shape_of(a),        shape_of(b), a.untyped_data(),
                          b.untyped_data(),    out.untyped_data(), Math::kBF16, DType::kBF16};
  JAX_GEMM_RETURN_IF_ERROR(read_types(a, b, out, options.precision, &contraction));
  JAX_GEMM_RETURN_IF_ERROR(check_result(contraction, out));
  GemmProblem problem;
  JAX_GEMM_RETURN_IF_ERROR(make_problem(contraction, &problem));
  return run(problem, options.config, ordinal, stream);
}

// Nothing may be thrown into XLA, which is compiled without exceptions.
ffi::Error handle(cudaStream_t stream, int32_t ordinal, ffi::AnyBuffer a, ffi::AnyBuffer b,
                  ffi::Result<ffi::AnyBuffer> out, ffi::Dictionary attributes) noexcept {
  try {
    return to_error(call(stream, ordinal, a, b, *out, attributes));
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("jax_gemm: ") + error.what());
  } catch (...) {
    return ffi::Error::Internal("jax_gemm: unknown failure on the host");
  }
}

}  // namespace
}  // namespace jax_gemm

XLA_FFI_DEFINE_HANDLER_SYMBOL(jax_gemm_v1, jax_gemm::handle,
                              xla::ffi::Ffi::Bind()
                                  .Ctx<xla::ffi::PlatformStream<cudaStream_t>>()
                                  .Ctx<xla::ffi::DeviceOrdinal>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Arg<xla::ffi::AnyBuffer>()
                                  .Ret<xla::ffi::AnyBuffer>()
                                  .Attrs<xla::ffi::Dictionary>(),
                              {xla::ffi::Traits::kCmdBufferCompatible});

extern "C" void* jax_gemm_v1_handler() { return reinterpret_cast<void*>(&jax_gemm_v1); }

extern "C" int jax_gemm_ffi_api_minor() { return XLA_FFI_API_MINOR; }
