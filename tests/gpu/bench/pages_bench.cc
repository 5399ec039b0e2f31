// Page management of format `diffkv` where the counts are, on the device, and by threads of the
// host, as DiffKV compares them (figure 13): prompts of 1,024 tokens and a step of generation,
// batches of 1 to 128 sequences of Llama-3.1-8B's shape, 15 % of the tokens in the high tier.
//
//   gpu_pages_bench
//
// Rows of the device are those of measure.h, microseconds of one layer: `diffkv_assign_pages`, a
// call for each prompt, and `diffkv_append` without a sweep, which codes the tokens and has its
// share of `diffkv_take_pages` for four layers in it. Of `diffkv_take_pages` itself they are
// microseconds of its call for all layers. Rows of the host:
//   op                  "host_page_manager"
//   phase               "prompt" or "step"
//   rows, layers        sequences; all layers are done at once
//   threads             of the host
//   us                  until the device's tables are complete, counts fetched and results brought
//                       over included; median
//   us_of_host          of that, without the two copies
// What fails has `failed` with the reason; the rest goes on, and the status is 1.
#include <cuda_runtime_api.h>
#include <driver_types.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "kernels/core/exec_context.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/runtime/cuda_status.h"
#include "kernels/cuda/runtime/device_queue.h"
#include "kernels/kv_format/diffkv.h"
#include "tests/gpu/bench/bench_case.h"
#include "tests/gpu/bench/device_arena.h"
#include "tests/gpu/bench/device_limits.h"
#include "tests/gpu/bench/diffkv_append_case.h"
#include "tests/gpu/bench/diffkv_assign_case.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/diffkv_take_pages_case.h"
#include "tests/gpu/bench/host_page_manager.h"
#include "tests/gpu/bench/measure.h"
#include "tests/gpu/bench/model_time.h"

namespace baton::kernels::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr uint32_t kSeed = 20240524;
constexpr double kHighShare = 0.15;
constexpr int32_t kTokens = 1024;
constexpr int32_t kLayers = 32;
constexpr int32_t kWarmUps = 3;
constexpr int32_t kCalls = 21;

// Memory that the device copies from and to directly. The vector must not change its size.
class Pinned {
 public:
  explicit Pinned(const std::vector<int32_t>& values)
      : base_(const_cast<int32_t*>(values.data())),
        pinned_(cudaHostRegister(base_, values.size() * sizeof(int32_t), cudaHostRegisterDefault) ==
                cudaSuccess) {}
  ~Pinned() {
    if (pinned_) cudaHostUnregister(base_);
  }
  Pinned(const Pinned&) = delete;
  Pinned& operator=(const Pinned&) = delete;

 private:
  int32_t* base_;
  bool pinned_;
};

absl::Status Copy(void* target, const std::vector<int32_t>& source) {
  return ToStatus(
      cudaMemcpy(target, source.data(), source.size() * sizeof(int32_t), cudaMemcpyHostToDevice),
      "copy to the device");
}

// Times a manager of the host: `phase` is its part, `result` what the device gets of it.
class HostTimes {
 public:
  HostTimes(HostPageManager& manager, const std::vector<int32_t>& counts)
      : manager_(manager), device_counts_(arena_.Upload(counts)) {}

  template <typename Phase>
  absl::Status Print(const char* name,
                     const DiffKvLoad& load,
                     const std::vector<int32_t>& result,
                     const Phase& phase) {
    auto* const target = arena_.Allocate<int32_t>(static_cast<int64_t>(result.size()));
    BATON_RETURN_IF_ERROR(arena_.status());
    const Pinned pinned_counts(manager_.counts());
    const Pinned pinned_result(result);
    std::vector<int32_t>& counts = manager_.counts();
    const auto round = [&] {
      absl::Status status =
          CopyToHost(counts.data(), device_counts_, counts.size() * sizeof(int32_t));
      status.Update(phase());
      status.Update(Copy(target, result));
      return status;
    };
    BATON_ASSIGN_OR_RETURN(const double all, model::MedianSeconds(kWarmUps, kCalls, round));
    BATON_ASSIGN_OR_RETURN(const double host, model::MedianSeconds(kWarmUps, kCalls, phase));
    absl::PrintF(
        "{\"op\":\"host_page_manager\",\"phase\":\"%s\",\"rows\":%d,\"layers\":%d,\"tokens\":%d,"
        "\"threads\":%d,\"us\":%.2f,\"us_of_host\":%.2f}\n",
        name,
        load.rows,
        load.layers,
        load.tokens,
        static_cast<int>(std::thread::hardware_concurrency()),
        all * 1e6,
        host * 1e6);
    std::fflush(stdout);
    return absl::OkStatus();
  }

 private:
  HostPageManager& manager_;
  DeviceArena arena_;
  const int32_t* device_counts_;
};

// Counts of a prompt whose heads differ: a head is `high_share` high, give or take a half of it.
std::vector<int32_t> RandomCounts(const DiffKvLoad& load) {
  std::mt19937 random(kSeed);
  const int32_t most = load.tier_tokens(kDiffKvHigh);
  std::vector<int32_t> counts;
  for (int64_t head = 0; head < load.sequences() * load.geometry.kv_heads; ++head) {
    const auto high =
        most / 2 + static_cast<int32_t>(random() % static_cast<uint32_t>(most / 2 + 1));
    counts.push_back(high);
    counts.push_back(load.tokens - high);
  }
  return counts;
}

absl::Status PrintHost(const BenchShape& shape) {
  // Room in the tables for heads that have less in one tier and more in the other.
  DiffKvLoad load = DiffKvLoadOf(shape, kHighShare, kTokens / 8);
  load.layers = kLayers;
  HostPageManager manager(load, static_cast<int>(std::thread::hardware_concurrency()));
  HostTimes times(manager, RandomCounts(load));
  BATON_RETURN_IF_ERROR(
      times.Print("prompt", load, manager.tables(), [&] { return manager.AssignPrompts(); }));
  return times.Print("step", load, manager.grown(), [&] { return manager.Grow(); });
}

bool MeasureBatch(const Measure& measure, int32_t rows) {
  BenchShape shape = {.op = "diffkv_assign_pages",
                      .format = "15/85 K8V4/K4V2",
                      .rows = rows,
                      .tokens = kTokens,
                      .kv_heads = 8,
                      .group = 4};
  DiffKvAssignCase assign(shape, kHighShare);
  bool measured = measure.Run(assign);
  shape.op = "diffkv_take_pages";
  DiffKvTakePagesCase take(shape, kHighShare, kLayers);
  measured = measure.Run(take) && measured;
  shape.op = "diffkv_append";
  shape.variant = "no sweep";
  DiffKvAppendCase append(shape, kHighShare, /*sweep=*/false);
  measured = measure.Run(append) && measured;
  if (const absl::Status status = PrintHost(shape); !status.ok()) {
    absl::PrintF(
        "{\"op\":\"host_page_manager\",\"rows\":%d,\"failed\":\"%s\"}\n", rows, status.ToString());
    measured = false;
  }
  return measured;
}

// True when everything was measured.
absl::StatusOr<bool> RunAll() {
  if (CudaOps() == nullptr) {
    return absl::FailedPreconditionError("no CUDA device");
  }
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceQueue> queue,
                         DeviceQueue::Create(kWorkspaceBytes));
  const ExecContext context = {.queue = queue.get()};
  BATON_ASSIGN_OR_RETURN(const DeviceLimits limits, MeasureDevice(*queue));
  const Measure measure(context, limits);
  bool measured = true;
  for (const int32_t rows : {1, 4, 16, 64, 128}) {
    measured = MeasureBatch(measure, rows) && measured;
  }
  return measured;
}

}  // namespace
}  // namespace baton::kernels::cuda

int main() {
  const absl::StatusOr<bool> measured = baton::kernels::cuda::RunAll();
  if (!measured.ok()) {
    std::fprintf(stderr, "%s\n", measured.status().ToString().c_str());
    return 1;
  }
  return *measured ? 0 : 1;
}
