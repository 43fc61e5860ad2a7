// The Python extension jax_gemm._core: plain data in and out, no logic. The only file that includes
// nanobind.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "configs.h"
#include "contraction.h"
#include "device.h"
#include "ffi.h"
#include "select.h"

#ifndef JAX_GEMM_VERSION
#define JAX_GEMM_VERSION "unknown"
#endif
#ifndef JAX_GEMM_ARCHITECTURES
#define JAX_GEMM_ARCHITECTURES "unknown"
#endif

namespace nb = nanobind;
using namespace nb::literals;

namespace jax_gemm {
namespace {

using Shape = std::vector<int64_t>;
using Device = std::variant<int, std::string>;

void raise_if_error(const Status& status) {
  if (!status.ok()) throw nb::value_error(status.message().c_str());
}

DType parse_dtype(std::string_view name) {
  for (DType dtype : {DType::kBF16, DType::kF16, DType::kF32}) {
    if (name == dtype_name(dtype)) return dtype;
  }
  const std::string message =
      "jax_gemm: no kernel for '" + std::string(name) + "', only for bfloat16, float16 and float32";
  throw nb::value_error(message.c_str());
}

const DeviceFacts& find_device(const Device& device) {
  if (const int* ordinal = std::get_if<int>(&device)) {
    const DeviceFacts* facts = nullptr;
    raise_if_error(device_facts(*ordinal, &facts));
    return *facts;
  }
  const std::string& name = std::get<std::string>(device);
  std::string names;
  for (const DeviceFacts& facts : known_devices()) {
    if (facts.name == name) return facts;
    names += (names.empty() ? "" : ", ") + facts.name;
  }
  const std::string message = "jax_gemm: unknown device '" + name + "', known are " + names;
  throw nb::value_error(message.c_str());
}

nb::dict to_dict(const DeviceFacts& device) {
  nb::dict dict, peaks;
  for (Math math : {Math::kBF16, Math::kF16, Math::kTF32, Math::kF32}) {
    peaks[math_name(math)] = peak_tflops(device, math);
  }
  dict["name"] = device.name;
  dict["compute_capability"] = nb::make_tuple(device.major, device.minor);
  dict["sm_count"] = device.sm_count;
  dict["shared_bytes_per_block"] = device.shared_bytes_per_block;
  dict["shared_bytes_per_sm"] = device.shared_bytes_per_sm;
  dict["registers_per_sm"] = device.registers_per_sm;
  dict["threads_per_sm"] = device.threads_per_sm;
  dict["l2_bytes"] = device.l2_bytes;
  dict["clock_ghz"] = device.clock_ghz;
  dict["bandwidth_gbs"] = device.bandwidth_gbs;
  dict["latency_us"] = device.latency_us;
  dict["peak_tflops"] = peaks;
  return dict;
}

nb::dict to_dict(const GemmConfig& config) {
  nb::dict dict;
  dict["name"] = config_name(config);
  dict["family"] = family_name(config.family);
  dict["math"] = math_name(config.math);
  dict["tile_m"] = config.tile_m;
  dict["tile_n"] = config.tile_n;
  dict["tile_k"] = config.tile_k;
  dict["warp_m"] = config.warp_m;
  dict["warp_n"] = config.warp_n;
  dict["stages"] = config.stages;
  dict["any_alignment"] = config.any_alignment;
  dict["threads"] = num_threads(config);
  dict["shared_bytes"] = shared_bytes(config);
  return dict;
}

nb::dict to_dict(const RingModel& ring) {
  nb::dict dict;
  dict["compute_us"] = ring.compute_us;
  dict["memory_us"] = ring.memory_us;
  dict["stages_needed"] = ring.stages_needed;
  return dict;
}

nb::dict to_dict(const Estimate& estimate) {
  nb::dict dict = to_dict(estimate.ring);
  dict["latency_us"] = estimate.latency_us;
  dict["blocks_per_sm"] = estimate.blocks_per_sm;
  dict["tiles"] = estimate.tiles;
  dict["waves"] = estimate.waves;
  dict["total_us"] = estimate.total_us;
  dict["floor_us"] = estimate.floor_us;
  dict["tflops"] = estimate.tflops;
  return dict;
}

nb::dict to_dict(const Operand& operand, const GemmProblem& problem, const char* kept_major) {
  nb::dict dict;
  nb::list strides;
  for (int i = 0; i < problem.batch_rank; ++i) strides.append(operand.batch_stride[i]);
  dict["major"] = operand.major == Major::kK ? "K" : kept_major;
  dict["ld"] = operand.ld;
  dict["batch_strides"] = strides;
  dict["alignment"] = operand_alignment(operand, problem);
  return dict;
}

nb::dict to_dict(const GemmProblem& problem) {
  nb::dict dict, out;
  nb::list batch, strides;
  for (int i = 0; i < problem.batch_rank; ++i) {
    batch.append(problem.batch_dims[i]);
    strides.append(problem.out_batch_stride[i]);
  }
  out["ld"] = problem.out_ld;
  out["batch_strides"] = strides;
  dict["math"] = math_name(problem.math);
  dict["m"] = problem.m;
  dict["n"] = problem.n;
  dict["k"] = problem.k;
  dict["batch"] = batch;
  dict["a"] = to_dict(problem.a, problem, "M");
  dict["b"] = to_dict(problem.b, problem, "N");
  dict["out"] = out;
  dict["description"] = describe(problem);
  return dict;
}

// Every configuration of the problem's math: its estimate, or why it is not legal.
nb::list candidates(const GemmProblem& problem, const DeviceFacts& device) {
  nb::list list;
  for (const GemmConfig& config : kConfigs) {
    if (config.math != problem.math) continue;
    const Status legal = is_legal(config, problem, device);
    nb::dict dict;
    dict["name"] = config_name(config);
    dict["illegal"] = legal.message();
    dict["estimate"] = legal.ok() ? nb::object(to_dict(estimate(config, problem, device))) : nb::none();
    list.append(dict);
  }
  return list;
}

nb::dict plan(std::string_view contraction, const Shape& a_shape, const Shape& b_shape,
              std::string_view dtype, std::string_view out_dtype, std::string_view precision,
              std::string_view config, const Device& device, int alignment) {
  if (alignment < 1 || (alignment & (alignment - 1)) != 0) {
    throw nb::value_error("jax_gemm: alignment is a power of two");
  }
  // Only the address's divisibility is ever looked at.
  void* const address = reinterpret_cast<void*>(static_cast<uintptr_t>(alignment));
  Contraction c{contraction, a_shape, b_shape,     address,
                address,     address, Math::kBF16, parse_dtype(out_dtype)};
  raise_if_error(math_for(parse_dtype(dtype), precision, &c.math));
  GemmProblem problem;
  bool swapped = false;
  raise_if_error(make_problem(c, &problem, &swapped));
  const DeviceFacts& facts = find_device(device);

  nb::dict dict = to_dict(problem);
  dict["swapped"] = swapped;
  dict["device"] = facts.name;
  // The empty problem ends before any choice.
  const bool empty = problem.m == 0 || problem.n == 0 || batch_size(problem) == 0;
  dict["config"] = nb::none();
  dict["estimate"] = nb::none();
  dict["candidates"] = empty ? nb::list() : candidates(problem, facts);
  if (empty) return dict;
  const GemmConfig* chosen = nullptr;
  raise_if_error(select(problem, facts, config, &chosen));
  dict["config"] = config_name(*chosen);
  dict["estimate"] = to_dict(estimate(*chosen, problem, facts));
  return dict;
}

std::string expressible(std::string_view contraction, const Shape& a_shape, const Shape& b_shape) {
  GemmProblem problem;
  const Contraction c{contraction, a_shape, b_shape, nullptr, nullptr, nullptr, Math::kBF16, DType::kBF16};
  return make_problem(c, &problem).message();
}

nb::dict registrations() {
  nb::dict dict;
  dict["jax_gemm_v1"] = nb::capsule(jax_gemm_v1_handler(), "xla._CUSTOM_CALL_TARGET");
  return dict;
}

nb::list list_configs() {
  nb::list list;
  for (const GemmConfig& config : kConfigs) list.append(to_dict(config));
  return list;
}

nb::list list_known_devices() {
  nb::list list;
  for (const DeviceFacts& device : known_devices()) list.append(to_dict(device));
  return list;
}

nb::dict build_info() {
  nb::dict dict;
  dict["version"] = JAX_GEMM_VERSION;
  dict["architectures"] = JAX_GEMM_ARCHITECTURES;
  dict["cuda_version"] =
      std::to_string(cuda_version() / 1000) + "." + std::to_string(cuda_version() % 1000 / 10);
  dict["ffi_api_minor"] = jax_gemm_ffi_api_minor();
  return dict;
}

}  // namespace
}  // namespace jax_gemm

NB_MODULE(_core, m) {
  using namespace jax_gemm;
  m.doc() = "The compiled part of jax_gemm; see _core.pyi.";
  m.def("registrations", &registrations);
  m.def("ffi_api_minor", &jax_gemm_ffi_api_minor);
  m.def("configs", &list_configs);
  m.def("known_devices", &list_known_devices);
  m.def("device_count", &device_count);
  m.def("device_facts", [](int ordinal) { return to_dict(find_device(ordinal)); }, "ordinal"_a);
  m.def("build_info", &build_info);
  m.def("expressible", &expressible, "contraction"_a, "a_shape"_a, "b_shape"_a);
  m.def("plan", &plan, "contraction"_a, "a_shape"_a, "b_shape"_a, "dtype"_a, "out_dtype"_a, "precision"_a,
        "config"_a, "device"_a, "alignment"_a = 16);
  m.def(
      "ring_model",
      [](int tile_m, int tile_n, int tile_k, int element_bytes, double peak_tflops, double bandwidth_gbs,
         int sm_count, double latency_us) {
        return to_dict(ring_model(tile_m, tile_n, tile_k, element_bytes, peak_tflops, bandwidth_gbs, sm_count,
                                  latency_us));
      },
      "tile_m"_a, "tile_n"_a, "tile_k"_a, "element_bytes"_a, "peak_tflops"_a, "bandwidth_gbs"_a, "sm_count"_a,
      "latency_us"_a);
}
