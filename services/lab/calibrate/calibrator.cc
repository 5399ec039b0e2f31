#include "services/lab/calibrate/calibrator.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"

#include "common/base/status_macros.h"
#include "common/eval/eval_case.h"
#include "common/eval/result_row.h"
#include "common/eval/result_writer.h"
#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "common/text/load_tokenizer.h"
#include "services/lab/calibrate/choose.h"
#include "services/lab/calibrate/sweep.h"
#include "services/lab/table/table_cases.h"

namespace baton::lab {
namespace {

// How much more than the defaults the economy tier may lose.
constexpr double kEconomyFactor = 3.0;

int64_t KeyWidth(const kv::KvDimensions& dimensions) {
  return int64_t{dimensions.kv_heads} * dimensions.head_dim;
}

void PrintChoice(std::string_view stage, const Candidate& candidate) {
  std::cerr << absl::StrFormat(
      "calibrate: %s -> %s: %d/%d correct, net loss %d, %.1f%% of the bytes, %.1f%% sent, "
      "%.1f%% attended\n",
      stage,
      candidate.point.kv,
      candidate.point.correct,
      candidate.point.cases,
      candidate.net_loss(),
      100.0 * candidate.point.bytes_share,
      100.0 * candidate.point.wire_share.value_or(1.0),
      100.0 * candidate.point.attended_share.value_or(1.0));
}

}  // namespace

Calibrator::Calibrator(CalibratorOptions options,
                       const text::ModelTokenizer& tokenizer,
                       const TableModels& models,
                       eval::ResultWriter& writer)
    : options_(std::move(options)),
      tokenizer_(tokenizer),
      models_(models),
      writer_(writer),
      key_width_(KeyWidth(models.front()->dimensions())) {}

const Candidate* Calibrator::Find(const kv::KvFormatPolicy& policy) const {
  const auto found = std::ranges::find(measured_, policy, &Measured::policy);
  return found == measured_.end() ? nullptr : &found->candidate;
}

absl::Status Calibrator::Run(const std::vector<kv::KvFormatPolicy>& policies) {
  std::vector<kv::KvFormatPolicy> fresh;
  const auto add = [&](const kv::KvFormatPolicy& policy) {
    if (Find(policy) == nullptr && std::ranges::find(fresh, policy) == fresh.end()) {
      fresh.push_back(policy);
    }
  };
  add({});  // dense: what losses are counted against
  std::ranges::for_each(policies, add);
  std::vector<kv::KvPolicy> run;
  run.reserve(fresh.size());
  for (const kv::KvFormatPolicy& policy : fresh) {
    run.push_back({policy});
  }
  BATON_RETURN_IF_ERROR(
      RunTableCases(options_.cases, run, tokenizer_, options_.pool_bytes, models_, writer_));
  // A file that is gone on with may hold rows of other cases.
  std::vector<eval::ResultRow> rows = writer_.rows();
  std::erase_if(rows, [&](const eval::ResultRow& row) {
    return std::ranges::find(options_.cases, row.id, &eval::EvalCase::id) == options_.cases.end();
  });
  const std::map<std::string, Candidate> measured = Measure(std::move(rows));
  for (const kv::KvFormatPolicy& policy : fresh) {
    const auto found = measured.find(policy.CanonicalString());
    if (found == measured.end()) {
      return absl::InvalidArgumentError("calibrate: there are no cases to calibrate on");
    }
    measured_.push_back({policy, found->second});
    measured_.back().candidate.point.kv = policy.CanonicalString(kv::KvSpelling::kExplicit);
  }
  return absl::OkStatus();
}

template <typename Params>
absl::StatusOr<Params> Calibrator::Stage(std::string_view name,
                                         const std::vector<Params>& policies,
                                         const Goal& goal,
                                         const Params* current,
                                         kv::HiddenWire hidden) {
  std::vector<kv::KvFormatPolicy> formats;
  if (current != nullptr) {
    formats.push_back({.hidden = hidden, .resident = *current});
  }
  for (const Params& policy : policies) {
    formats.push_back({.hidden = hidden, .resident = policy});
  }
  std::cerr << absl::StrFormat(
      "calibrate: %s: %d policies, %d cases\n", name, formats.size(), options_.cases.size());
  BATON_RETURN_IF_ERROR(Run(formats));
  std::vector<Candidate> candidates;
  candidates.reserve(formats.size());
  for (const kv::KvFormatPolicy& format : formats) {
    candidates.push_back(*Find(format));
  }
  const std::optional<size_t> best = Choose(candidates, goal);
  PrintChoice(name, candidates[*best]);
  return std::get<Params>(formats[*best].resident);
}

absl::Status Calibrator::CalibrateDiffKv() {
  const Goal goal = {.limits = options_.limits, .cap = options_.caps.diffkv_bytes};
  BATON_ASSIGN_OR_RETURN(
      kv::DiffKvPolicy best,
      Stage<kv::DiffKvPolicy>(
          "diffkv 1/3, tiers and alpha_high", DiffKvTiersAndAlphaHigh(), goal, nullptr));
  BATON_ASSIGN_OR_RETURN(best, Stage("diffkv 2/3, alpha_low", DiffKvAlphaLow(best), goal, &best));
  BATON_ASSIGN_OR_RETURN(best, Stage("diffkv 3/3, window", DiffKvWindow(best), goal, &best));
  for (kv::KvPolicyDefaults::Family& family : chosen_.families) {
    family.diffkv = best;
  }
  return absl::OkStatus();
}

absl::Status Calibrator::CalibrateShadowKv() {
  const Goal attended = {
      .limits = options_.limits, .cost = Cost::kAttended, .cap = options_.caps.shadowkv_attended};
  const Goal bytes = {.limits = options_.limits, .cap = options_.caps.shadowkv_bytes};
  BATON_ASSIGN_OR_RETURN(
      kv::ShadowKvPolicy best,
      Stage<kv::ShadowKvPolicy>(
          "shadowkv 1/4, selector and chunk", ShadowKvSelectors(key_width_), attended, nullptr));
  BATON_ASSIGN_OR_RETURN(best,
                         Stage("shadowkv 2/4, budget", ShadowKvBudgets(best), attended, &best));
  BATON_ASSIGN_OR_RETURN(
      best, Stage("shadowkv 3/4, rank", ShadowKvRanks(best, key_width_), bytes, &best));
  BATON_ASSIGN_OR_RETURN(best, Stage("shadowkv 4/4, values", ShadowKvValues(best), bytes, &best));
  for (kv::KvPolicyDefaults::Family& family : chosen_.families) {
    family.shadowkv = best;
  }
  return absl::OkStatus();
}

absl::Status Calibrator::CalibrateHidden8DiffKv() {
  constexpr kv::HiddenWire kHidden = kv::HiddenWire::kFp8;
  const Goal goal = {
      .limits = options_.limits, .cost = Cost::kWire, .cap = options_.caps.hidden8_diffkv_wire};
  BATON_ASSIGN_OR_RETURN(chosen_.of(kHidden).diffkv,
                         Stage<kv::DiffKvPolicy>("hidden8+diffkv, tiers and alpha_high",
                                                 DiffKvTiersAndAlphaHigh(),
                                                 goal,
                                                 nullptr,
                                                 kHidden));
  return absl::OkStatus();
}

kv::KvFormatPolicy Calibrator::CheapestWithin(const LossLimits& limits,
                                              const kv::KvFormatPolicy& otherwise) const {
  std::vector<kv::KvFormatPolicy> policies;
  std::vector<Candidate> candidates;
  for (const Measured& measured : measured_) {
    if (measured.policy.hidden == kv::HiddenWire::kNone) {
      policies.push_back(measured.policy);
      candidates.push_back(measured.candidate);
    }
  }
  const std::optional<size_t> best = Choose(candidates, {.limits = limits});
  return best.has_value() && candidates[*best].Within(limits) ? policies[*best] : otherwise;
}

kv::KvCalibration Calibrator::calibration() const {
  kv::KvCalibration calibration;
  calibration.defaults = chosen_;
  const LossLimits& limits = options_.limits;
  const kv::KvFormatPolicy high = CheapestWithin({.total = 0.0, .task = 0.0}, {});
  const kv::KvFormatPolicy balanced = CheapestWithin(limits, high);
  const kv::KvFormatPolicy economy = CheapestWithin(
      {.total = kEconomyFactor * limits.total, .task = kEconomyFactor * limits.task}, balanced);
  calibration.tiers = {high, balanced, economy};
  return calibration;
}

std::vector<kv::CalibrationPoint> Calibrator::curve() const {
  std::vector<kv::CalibrationPoint> curve;
  curve.reserve(measured_.size());
  for (const Measured& measured : measured_) {
    curve.push_back(measured.candidate.point);
  }
  return curve;
}

}  // namespace baton::lab
