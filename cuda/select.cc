#include "select.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "configs.h"

namespace jax_gemm {
namespace {

// ---- Constants of the cost model ----

constexpr double kSharedBytesPerClock = 128;  // of one SM, reads and writes together
constexpr double kL2BytesPerClock = 40;       // to one SM while all SMs read: 5120 in all on an A100
constexpr double kMemoryEfficiency = 0.9;     // of the specified bandwidth: 4.3 of 4.8 TB/s on an H200
constexpr double kLaunchUs = 1.5;             // start and end of a kernel, without its work
constexpr int kReservedSharedBytes = 1024;    // that the system takes of each block
// Fitted to times of 100 products on an H200 (docs/performance.md), not measured one by one: what a copy
// costs the load/store unit, in passes of its bytes; what multiplying and shared-memory traffic lose to each
// other where they take equally long, a loss that falls with the fourth power of their ratio; the shares of
// issue slots that are left to mma.sync beside the rounding to tf32, and to FFMA beside loads and addresses.
constexpr double kCopyPasses = 1.2;
constexpr double kOverlapLoss = 0.3;
constexpr double kTf32Share = 0.9;
constexpr double kFfmaShare = 0.84;
constexpr int64_t kMaxGrid = std::numeric_limits<int32_t>::max();

int64_t ceil_div(int64_t x, int64_t y) { return x / y + (x % y != 0); }

// Number of output tiles. In double: only their being too many for a grid matters beyond 2^53.
double count_tiles(const GemmConfig& c, const GemmProblem& p) {
  return static_cast<double>(ceil_div(p.m, c.tile_m)) * static_cast<double>(ceil_div(p.n, c.tile_n)) *
         static_cast<double>(batch_size(p));
}

int blocks_per_sm(const GemmConfig& c, const DeviceFacts& device) {
  const int blocks = std::min({device.shared_bytes_per_sm / (shared_bytes(c) + kReservedSharedBytes),
                               device.threads_per_sm / num_threads(c),
                               device.registers_per_sm / (max_registers(c) * num_threads(c))});
  return std::max(blocks, 1);
}

double issue_share(Math math) {
  return math == Math::kTF32 ? kTf32Share : math == Math::kF32 ? kFfmaShare : 1;
}

// Passes of the load/store unit to copy an operand's tile of `mn` rows or columns. Copies narrower than 16
// bytes take as many more instructions, each of them a pass of its own; f32 math transposes K-major operands
// in copies of one element.
double copy_passes(const GemmConfig& c, const GemmProblem& p, const Operand& operand, int mn) {
  const bool transposed = c.math == Math::kF32 && operand.major == Major::kK;
  const int width = transposed ? operand_bytes(c.math) : operand_alignment(operand, p);
  return static_cast<double>(mn) * c.tile_k * operand_bytes(c.math) * 16 / width / kSharedBytesPerClock;
}

// What one K tile of one block costs its SM, in microseconds.
struct StepCost {
  double issue;  // multiplying, and the shared memory's traffic for it, which overlap for the most part
  double fetch;  // its copy out of L2
};

StepCost step_cost(const GemmConfig& c, const GemmProblem& p, const DeviceFacts& device,
                   const RingModel& ring) {
  const double clocks_per_us = device.clock_ghz * 1e3;
  const int element = operand_bytes(c.math);
  const double tile_bytes = static_cast<double>(c.tile_m + c.tile_n) * c.tile_k * element;
  const double fragment_bytes =
      static_cast<double>(c.warp_m + c.warp_n) * c.tile_k * element * (num_threads(c) / 32);
  const double copies = kCopyPasses * (copy_passes(c, p, p.a, c.tile_m) + copy_passes(c, p, p.b, c.tile_n));
  const double shared_clocks = fragment_bytes / kSharedBytesPerClock + copies;
  const double shared_us = shared_clocks / clocks_per_us;
  const double math_us = ring.compute_us / issue_share(c.math);
  const double longer = std::max(math_us, shared_us), ratio = std::min(math_us, shared_us) / longer;
  return {longer * (1 + kOverlapLoss * std::pow(ratio, 4)), tile_bytes / kL2BytesPerClock / clocks_per_us};
}

// One wave's time on an SM that holds `resident` blocks.
double wave_us(const GemmConfig& c, const GemmProblem& p, const DeviceFacts& device, const StepCost& step,
               double resident) {
  // A ring that is too shallow leaves the latency bare: stages - 1 tiles fly at once.
  const double step_us =
      std::max(resident * std::max(step.issue, step.fetch), device.latency_us / (c.stages - 1));
  const double steps = static_cast<double>(ceil_div(p.k, c.tile_k));
  const double store_us = static_cast<double>(c.tile_m) * c.tile_n * dtype_bytes(p.out_type) *
                          device.sm_count / (device.bandwidth_gbs * kMemoryEfficiency * 1e3);
  // The first tile's flight and the epilogue; resident blocks hide each other's.
  return steps * step_us + device.latency_us / resident + store_us;
}

double operand_size(const Operand& operand, const GemmProblem& p, int64_t rows) {
  double bytes = static_cast<double>(rows) * static_cast<double>(p.k) * operand_bytes(p.math);
  for (int i = 0; i < p.batch_rank; ++i) {
    if (operand.batch_stride[i] != 0) bytes *= static_cast<double>(p.batch_dims[i]);
  }
  return bytes;
}

double output_size(const GemmProblem& p) {
  return static_cast<double>(p.m) * static_cast<double>(p.n) * static_cast<double>(batch_size(p)) *
         dtype_bytes(p.out_type);
}

// Bytes from and to device memory: each operand once where L2 keeps it, else once for each wave
// that works on a roughly square patch of the output.
double traffic(const GemmConfig& c, const GemmProblem& p, const DeviceFacts& device, double resident) {
  const double once = operand_size(p.a, p, p.m) + operand_size(p.b, p, p.n);
  if (once <= static_cast<double>(device.l2_bytes) / 2) return once + output_size(p);
  const double tiles_m = static_cast<double>(ceil_div(p.m, c.tile_m));
  const double tiles_n = static_cast<double>(ceil_div(p.n, c.tile_n));
  const double patch = std::min(resident, tiles_m * tiles_n);
  const double patch_m = std::clamp(std::sqrt(patch * c.tile_n / c.tile_m), 1.0, tiles_m);
  const double patch_n = std::clamp(patch / patch_m, 1.0, tiles_n);
  const double patches = count_tiles(c, p) / (patch_m * patch_n);
  const double read =
      patches * (patch_m * c.tile_m + patch_n * c.tile_n) * static_cast<double>(p.k) * operand_bytes(p.math);
  return std::max(once, read) + output_size(p);
}

std::string major_name(const Operand& operand, const char* kept) {
  return operand.major == Major::kK ? "K" : kept;
}

// ---- Choice ----

const GemmConfig* find_config(std::string_view name) {
  for (const GemmConfig& config : kConfigs) {
    if (config_name(config) == name) return &config;
  }
  return nullptr;
}

std::string names_for(Math math) {
  std::string names;
  for (const GemmConfig& config : kConfigs) {
    if (config.math == math) names += (names.empty() ? "" : ", ") + config_name(config);
  }
  return names;
}

Status refuse(StatusCode code, std::string_view what, const GemmProblem& p, const DeviceFacts& device,
              const std::string& reason) {
  return {code, "jax_gemm: " + std::string(what) + " compute " + describe(p) + " on " + device.name + ": " +
                    reason};
}

// Why the last configuration that multiplies as the problem wants is not legal: the smallest, by the table's
// order.
Status refuse_all(const GemmProblem& p, const DeviceFacts& device) {
  Status last(StatusCode::kUnimplemented, "this build has no kernel for it");
  for (const GemmConfig& config : kConfigs) {
    if (config.math != p.math) continue;
    const Status legal = is_legal(config, p, device);
    last = {legal.code(), config_name(config) + ": " + legal.message()};
  }
  return refuse(last.code(), "no configuration can", p, device,
                last.message() + "; use jax.numpy.matmul here");
}

Status select_named(const GemmProblem& p, const DeviceFacts& device, std::string_view name,
                    const GemmConfig** chosen) {
  const GemmConfig* config = find_config(name);
  if (!config) {
    return {StatusCode::kInvalidArgument, "jax_gemm: there is no configuration '" + std::string(name) +
                                              "' for " + describe(p) + "; there are " + names_for(p.math)};
  }
  const Status legal = is_legal(*config, p, device);
  if (!legal.ok()) {
    return refuse(legal.code(), std::string(name) + " cannot", p, device,
                  legal.message() + "; leave the configuration out to have one chosen");
  }
  *chosen = config;
  return {};
}

}  // namespace

const char* math_name(Math math) {
  switch (math) {
    case Math::kBF16:
      return "bf16";
    case Math::kF16:
      return "f16";
    case Math::kTF32:
      return "tf32";
    case Math::kF32:
      return "f32";
  }
  return "?";
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return "bfloat16";
    case DType::kF16:
      return "float16";
    case DType::kF32:
      return "float32";
  }
  return "?";
}

const char* family_name(Family family) {
  switch (family) {
    case Family::kSm80:
      return "sm80";
  }
  return "?";
}

std::string config_name(const GemmConfig& c) {
  const auto size = [](int value) { return std::to_string(value); };
  return std::string(family_name(c.family)) + "_" + math_name(c.math) + "_" + size(c.tile_m) + "x" +
         size(c.tile_n) + "x" + size(c.tile_k) + "_w" + size(c.warp_m) + "x" + size(c.warp_n) + "_s" +
         size(c.stages);
}

std::string describe(const GemmProblem& p) {
  std::string text = std::string(math_name(p.math)) + " M=" + std::to_string(p.m) +
                     " N=" + std::to_string(p.n) + " K=" + std::to_string(p.k);
  for (int i = 0; i < p.batch_rank; ++i) {
    text += (i ? "x" : " batch=") + std::to_string(p.batch_dims[i]);
  }
  return text + ", A " + major_name(p.a, "M") + "-major ld " + std::to_string(p.a.ld) + ", B " +
         major_name(p.b, "N") + "-major ld " + std::to_string(p.b.ld) + ", to " + dtype_name(p.out_type);
}

RingModel ring_model(int tile_m, int tile_n, int tile_k, int element_bytes, double peak_tflops,
                     double bandwidth_gbs, int sm_count, double latency_us) {
  RingModel ring{};
  // TFLOP/s are 1e6 operations, GB/s 1e3 bytes a microsecond.
  ring.compute_us = 2.0 * tile_m * tile_n * tile_k / (peak_tflops * 1e6 / sm_count);
  ring.memory_us =
      static_cast<double>(element_bytes) * tile_k * (tile_m + tile_n) / (bandwidth_gbs * 1e3 / sm_count);
  const double step = std::max(ring.compute_us, ring.memory_us);
  ring.stages_needed = 1 + static_cast<int>(std::ceil(latency_us / step));
  return ring;
}

int operand_alignment(const Operand& operand, const GemmProblem& p) {
  if (p.k == 0) return 16;  // nothing is read
  const int64_t kept = &operand == &p.b ? p.n : p.m;
  const int64_t rows = operand.major == Major::kK ? kept : p.k;
  const int64_t bytes = operand_bytes(p.math);
  // A bit set below 16 in any of them limits the alignment.
  uint64_t bits = 16 | reinterpret_cast<uintptr_t>(operand.data);
  if (rows > 1) bits |= static_cast<uint64_t>(operand.ld * bytes);
  for (int i = 0; i < p.batch_rank; ++i) {
    if (p.batch_dims[i] > 1) bits |= static_cast<uint64_t>(operand.batch_stride[i] * bytes);
  }
  return static_cast<int>(bits & -bits);
}

bool whole_chunks(const GemmProblem& p) {
  if (p.k == 0) return true;  // nothing is read
  const auto whole = [&](const Operand& operand, int64_t kept) {
    const int64_t row_bytes = (operand.major == Major::kK ? p.k : kept) * operand_bytes(p.math);
    return operand_alignment(operand, p) == 16 && row_bytes % 16 == 0;
  };
  return whole(p.a, p.m) && whole(p.b, p.n);
}

Status is_legal(const GemmConfig& config, const GemmProblem& p, const DeviceFacts& device) {
  // A kernel is compiled for one way of multiplying.
  if (config.math != p.math) {
    return {StatusCode::kInvalidArgument, std::string("it multiplies ") + math_name(config.math)};
  }
  // The epilogue rounds to the operands' type or leaves the accumulators as they are.
  const bool same_type = (p.math == Math::kBF16 && p.out_type == DType::kBF16) ||
                         (p.math == Math::kF16 && p.out_type == DType::kF16);
  if (p.out_type != DType::kF32 && !same_type) {
    return {StatusCode::kUnimplemented, std::string(math_name(p.math)) + " products are stored as " +
                                            "float32 or in the operands' type, not as " +
                                            dtype_name(p.out_type)};
  }
  // cp.async, and mma.sync on bf16 and tf32, came with capability 8.0.
  if (device.major < 8) {
    return {StatusCode::kUnimplemented, "it needs compute capability 8.0, the device has " +
                                            std::to_string(device.major) + "." +
                                            std::to_string(device.minor)};
  }
  // The ring must fit.
  if (shared_bytes(config) > device.shared_bytes_per_block) {
    return {StatusCode::kResourceExhausted, "it needs " + std::to_string(shared_bytes(config)) +
                                                " bytes of shared memory, a block of the device has " +
                                                std::to_string(device.shared_bytes_per_block)};
  }
  // Copies of whole 16-byte chunks are the rule; only some configurations are also built with others.
  if (!config.any_alignment && !whole_chunks(p)) {
    return {StatusCode::kInvalidArgument,
            "it needs operands of whole 16-byte chunks: aligned to 16 bytes, they are aligned to " +
                std::to_string(operand_alignment(p.a, p)) + " (A) and " +
                std::to_string(operand_alignment(p.b, p)) +
                " (B), with multiples of 16 bytes along their contiguous axis"};
  }
  // Tiles of K are counted in 32 bits.
  if (ceil_div(p.k, config.tile_k) > std::numeric_limits<int32_t>::max() - config.stages) {
    return {StatusCode::kResourceExhausted, "K is more than 2^31 of its tiles"};
  }
  // One block a tile, in a grid of one dimension.
  if (count_tiles(config, p) > static_cast<double>(kMaxGrid)) {
    return {StatusCode::kResourceExhausted, "its tiles are more than the 2^31 - 1 blocks of a grid"};
  }
  return {};
}

Estimate estimate(const GemmConfig& c, const GemmProblem& p, const DeviceFacts& device) {
  const double peak = peak_tflops(device, c.math);
  Estimate e{};
  e.ring = ring_model(c.tile_m, c.tile_n, c.tile_k, operand_bytes(c.math), peak, device.bandwidth_gbs,
                      device.sm_count, device.latency_us);
  e.latency_us = device.latency_us;
  e.blocks_per_sm = blocks_per_sm(c, device);
  e.tiles = count_tiles(c, p);
  e.waves = e.tiles / (static_cast<double>(device.sm_count) * e.blocks_per_sm);

  // The busiest SM works off full waves, then one of what is left, with fewer blocks resident.
  const StepCost step = step_cost(c, p, device, e.ring);
  const double busiest = std::ceil(e.tiles / device.sm_count);
  const double full = std::floor(busiest / e.blocks_per_sm), rest = busiest - full * e.blocks_per_sm;
  double work_us = full * wave_us(c, p, device, step, e.blocks_per_sm);
  if (rest > 0) work_us += wave_us(c, p, device, step, rest);

  const double resident = std::min(e.tiles, static_cast<double>(device.sm_count) * e.blocks_per_sm);
  const double memory_us = traffic(c, p, device, resident) / (device.bandwidth_gbs * kMemoryEfficiency * 1e3);
  e.total_us = kLaunchUs + std::max(work_us, memory_us);

  const double operations = 2.0 * static_cast<double>(p.m) * static_cast<double>(p.n) *
                            static_cast<double>(p.k) * static_cast<double>(batch_size(p));
  const double bytes = operand_size(p.a, p, p.m) + operand_size(p.b, p, p.n) + output_size(p);
  e.floor_us = std::max(operations / (peak * 1e6), bytes / (device.bandwidth_gbs * 1e3));
  e.tflops = operations / (e.total_us * 1e6);
  return e;
}

Status select(const GemmProblem& problem, const DeviceFacts& device, std::string_view requested,
              const GemmConfig** chosen) {
  if (!requested.empty()) return select_named(problem, device, requested, chosen);
  const GemmConfig* best = nullptr;
  double best_us = std::numeric_limits<double>::infinity();
  for (const GemmConfig& config : kConfigs) {
    if (config.math != problem.math || !is_legal(config, problem, device).ok()) continue;
    const double us = estimate(config, problem, device).total_us;
    if (us < best_us) best = &config, best_us = us;  // of equals the first in the table
  }
  if (!best) return refuse_all(problem, device);
  *chosen = best;
  return {};
}

}  // namespace jax_gemm
