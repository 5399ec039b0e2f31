#include "tests/gpu/bench/model_capacity.h"

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "tests/gpu/bench/model_capacity_case.h"
#include "tests/gpu/bench/model_capacity_dense.h"
#include "tests/gpu/bench/model_capacity_diffkv.h"
#include "tests/gpu/bench/model_capacity_shadowkv.h"
#include "tests/gpu/bench/model_cost.h"
#include "tests/gpu/bench/model_kv_budget.h"
#include "tests/gpu/bench/model_loaded.h"
#include "tests/gpu/bench/model_row.h"
#include "tests/gpu/bench/model_time.h"
#include "tests/gpu/bench/shadowkv_load.h"

namespace baton::model {
namespace {

// Of the device's memory, that a worker is to use.
constexpr double kShare = 0.92;
// Of the host's memory that is available, for what sequences keep there.
constexpr double kHostShare = 0.85;

// How many sequences there are, and what there can't be more for.
struct Batch {
  int32_t sequences = 0;
  std::string_view bound;
};

// What was measured of a case.
struct Capacity {
  int32_t sequences = 0;
  double tokens_per_s = 0.0;
};

// Measures the cases of one context.
class CapacityBench {
 public:
  CapacityBench(const LoadedModel& loaded, int32_t tokens) : loaded_(loaded), tokens_(tokens) {}

  // Makes, times and prints a case; those behind that of dense pages are compared with it. False if
  // it failed.
  bool Run(CapacityCase& capacity_case);

 private:
  ModelRow Row(const CapacityCase& capacity_case) const;
  bool RunVariant(CapacityCase& capacity_case, int32_t variant, const Batch& batch);
  absl::Status Time(CapacityCase& capacity_case, int32_t variant, int32_t sequences, ModelRow& row);
  void AddRatios(const Capacity& capacity, ModelRow& row) const;

  const LoadedModel& loaded_;
  const int32_t tokens_;
  std::optional<Capacity> dense_;  // once it was measured
};

// As many as there is memory for.
absl::StatusOr<Batch> Fit(const CapacityCase& capacity_case) {
  BATON_ASSIGN_OR_RETURN(const size_t budget, KvBudget(kShare));
  Batch batch = {.sequences = kMostCapacitySequences, .bound = "rows"};
  const auto limit = [&](size_t bytes, int64_t sequence_bytes, std::string_view bound) {
    const int64_t fit = static_cast<int64_t>(bytes) / sequence_bytes;
    if (fit < batch.sequences) {
      batch = {.sequences = static_cast<int32_t>(fit), .bound = bound};
    }
  };
  limit(budget, capacity_case.kv_bytes(), "memory");
  if (const int64_t host_bytes = capacity_case.host_kv_bytes(); host_bytes > 0) {
    BATON_ASSIGN_OR_RETURN(const size_t host_budget, HostKvBudget(kHostShare));
    limit(host_budget, host_bytes, "host memory");
  }
  if (batch.sequences == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there is no room for a sequence in ", std::string(batch.bound)));
  }
  return batch;
}

ModelRow CapacityBench::Row(const CapacityCase& capacity_case) const {
  ModelRow row("capacity", loaded_.name);
  row.Add("format", capacity_case.format()).Add("tokens", int64_t{tokens_});
  row.Add("kv_bytes", capacity_case.kv_bytes());
  if (const int64_t host_bytes = capacity_case.host_kv_bytes(); host_bytes > 0) {
    row.Add("host_kv_bytes", host_bytes);
  }
  return row;
}

bool CapacityBench::Run(CapacityCase& capacity_case) {
  const absl::StatusOr<Batch> batch = Fit(capacity_case);
  if (!batch.ok()) {
    return Row(capacity_case).Print(batch.status());
  }
  if (const absl::Status made = capacity_case.Make(batch->sequences); !made.ok()) {
    return Row(capacity_case).Add("sequences", int64_t{batch->sequences}).Print(made);
  }
  bool measured = true;
  for (int32_t variant = 0; variant < capacity_case.variants(); ++variant) {
    measured = RunVariant(capacity_case, variant, *batch) && measured;
  }
  return measured;
}

bool CapacityBench::RunVariant(CapacityCase& capacity_case, int32_t variant, const Batch& batch) {
  ModelRow row = Row(capacity_case);
  row.Add("sequences", int64_t{batch.sequences});
  row.Add("bound", std::string(batch.bound));
  return row.Print(Time(capacity_case, variant, batch.sequences, row));
}

absl::Status CapacityBench::Time(CapacityCase& capacity_case,
                                 int32_t variant,
                                 int32_t sequences,
                                 ModelRow& row) {
  BATON_RETURN_IF_ERROR(capacity_case.Begin(variant, row));
  BATON_ASSIGN_OR_RETURN(const double seconds,
                         MedianSeconds(CapacityCase::kWarmUps, CapacityCase::kSteps, [&] {
                           return capacity_case.Step();
                         }));
  BATON_RETURN_IF_ERROR(capacity_case.End(row));
  const Capacity capacity = {.sequences = sequences, .tokens_per_s = sequences / seconds};
  const double bytes = ModelCost(loaded_.model.config()).WeightBytes() + capacity_case.read_bytes();
  row.Add("ms", seconds * 1e3, 3).Add("tokens_per_s", capacity.tokens_per_s, 1);
  const int32_t layers = loaded_.model.kv_shape().layers;
  row.Add("us_per_sequence_layer", seconds * 1e6 / sequences / layers, 3);
  row.Add("bytes", bytes, 0).Add("share_of_4250", bytes / seconds / 4.25e12, 3);
  if (capacity_case.format() == "dense") {
    dense_ = capacity;
  } else if (dense_.has_value()) {
    AddRatios(capacity, row);
  }
  return absl::OkStatus();
}

void CapacityBench::AddRatios(const Capacity& capacity, ModelRow& row) const {
  row.Add("sequences_to_dense", 1.0 * capacity.sequences / dense_->sequences, 2);
  row.Add("tokens_per_s_to_dense", capacity.tokens_per_s / dense_->tokens_per_s, 3);
}

// Memory of one case is free again before the next one asks how much there is.
template <typename Case, typename... Args>
bool Measure(const LoadedModel& loaded, int32_t tokens, CapacityBench& bench, const Args&... args) {
  Case capacity_case(loaded, tokens, args...);
  return bench.Run(capacity_case);
}

}  // namespace

bool MeasureCapacity(const LoadedModel& loaded, bool quick, std::string_view format) {
  const auto wanted = [&](std::string_view name) { return format.empty() || format == name; };
  const std::vector<int32_t> contexts =
      quick ? std::vector<int32_t>{32768} : std::vector<int32_t>{8192, 32768, 131072};
  bool measured = true;
  for (const int32_t tokens : contexts) {
    CapacityBench bench(loaded, tokens);
    if (wanted("dense")) measured = Measure<DenseCapacityCase>(loaded, tokens, bench) && measured;
    if (wanted("diffkv")) measured = Measure<DiffKvCapacityCase>(loaded, tokens, bench) && measured;
    const auto measure = [&](const kernels::cuda::ShadowKvCodes& codes) {
      measured = Measure<ShadowKvCapacityCase>(loaded, tokens, bench, codes) && measured;
    };
    for (const int32_t bits : {16, 8}) {
      if (wanted("shadowkv")) measure({.landmark_bits = bits});
    }
    for (const int32_t bits : {4, 16}) {
      if (wanted("shadowkv_host")) measure({.value_bits = bits, .values_on_host = true});
    }
  }
  return measured;
}

}  // namespace baton::model
