#include "tests/gpu/bench/model_shares.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/base/status_macros.h"
#include "common/model/forward.h"
#include "tests/gpu/bench/diffkv_load.h"
#include "tests/gpu/bench/model_decode_steps.h"
#include "tests/gpu/bench/model_diffkv_kv.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_time.h"

namespace baton::model {
namespace {

constexpr double kHighShare = 0.15;
constexpr int32_t kEvery = 16;
constexpr int32_t kWarmUps = 4;
constexpr int32_t kSteps = 64;  // of each kind

enum Kind : size_t { kWhole, kNoSweep, kNoPages, kNoAppend, kKinds };
constexpr std::array<DiffKvTurns, kKinds> kTurns = {
    {{.sweep_every = kEvery, .score_every = kEvery},
     {.sweep_every = 0, .score_every = kEvery},
     {.sweep_every = 0, .score_every = kEvery, .take_pages = false},
     {.sweep_every = 0, .score_every = kEvery, .take_pages = false, .append = false}}};

struct Batch {
  int32_t sequences;
  int32_t tokens;
};
constexpr Batch kBatches[] = {{kMostShareSequences, 8192}, {8, 65536}, {16, 32768}};

// Mean seconds of a step of each kind, since not every step has a sequence whose turn it is. Kinds
// take turns, so that all see the same pool and clock.
absl::StatusOr<std::array<double, kKinds>> Time(ModelDecodeSteps& steps, ModelDiffKvKv& kv) {
  std::array<double, kKinds> seconds = {};
  for (int32_t step = 0; step < kWarmUps + kSteps; ++step) {
    for (size_t kind = 0; kind < kKinds; ++kind) {
      kv.SetTurns(kTurns[kind]);
      const Stopwatch watch;
      BATON_RETURN_IF_ERROR(steps.NextTokens(kv));
      if (step >= kWarmUps) {
        seconds[kind] += watch.Seconds() / kSteps;
      }
    }
  }
  BATON_RETURN_IF_ERROR(kv.CheckAppended());
  return seconds;
}

absl::Status Measure(const LoadedModel& loaded, const Batch& batch, ModelRow& row) {
  const KvShape shape = loaded.model.kv_shape();
  const kernels::cuda::DiffKvLoad load = {
      .geometry = {.kv_heads = shape.kv_heads, .head_dim = shape.head_dim},
      .layers = shape.layers,
      .rows = batch.sequences,
      .tokens = batch.tokens,
      .high_share = kHighShare,
      .growth = static_cast<int32_t>(kKinds) * (kWarmUps + kSteps)};
  BATON_ASSIGN_OR_RETURN(const std::unique_ptr<ModelDiffKvKv> kv,
                         ModelDiffKvKv::Create(loaded, load));
  BATON_ASSIGN_OR_RETURN(
      ModelDecodeSteps steps,
      ModelDecodeSteps::Create(
          loaded, std::vector<int32_t>(static_cast<size_t>(batch.sequences), batch.tokens)));
  BATON_ASSIGN_OR_RETURN(const auto seconds, Time(steps, *kv));
  const double sweep = seconds[kWhole] - seconds[kNoSweep];
  const double pages = seconds[kNoSweep] - seconds[kNoPages];
  const double append = seconds[kNoPages] - seconds[kNoAppend];
  row.Add("ms", seconds[kWhole] * 1e3, 3);
  row.Add("sweep_ms", sweep * 1e3, 3).Add("sweep_share", sweep / seconds[kWhole], 4);
  row.Add("pages_ms", pages * 1e3, 3).Add("pages_share", pages / seconds[kWhole], 4);
  row.Add("append_ms", append * 1e3, 3).Add("append_share", append / seconds[kWhole], 4);
  return absl::OkStatus();
}

}  // namespace

bool MeasureShares(const LoadedModel& loaded, bool quick) {
  bool measured = true;
  for (const Batch& batch : kBatches) {
    ModelRow row("shares", loaded.name);
    row.Add("format", "diffkv").Add("sequences", int64_t{batch.sequences});
    row.Add("tokens", int64_t{batch.tokens});
    measured = row.Print(Measure(loaded, batch, row)) && measured;
    if (quick) break;
  }
  return measured;
}

}  // namespace baton::model
