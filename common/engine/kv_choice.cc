#include "common/engine/kv_choice.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/encoded_format.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "common/kv/codec/staged_window.h"

namespace baton::engine {
namespace {

// Below this share of free dense pages `auto` takes the economy tier.
constexpr double kAutoPressure = 0.25;

// What the tiers below `exact` are without a calibration, best first (docs/kv-formats.md has their
// measured quality).
constexpr std::array<std::string_view, 3> kTierPolicies = {
    "diffkv:ah=0,al=0", "diffkv:al=0", "diffkv:high=k4v4,ah=0.5,al=0"};
enum Tier : size_t { kExact, kHigh, kBalanced, kEconomy };

absl::Status NotServed(const kv::KvPolicy& policy) {
  return absl::FailedPreconditionError(absl::StrCat(
      "POLICY_NOT_SERVED: kv_policy: ", policy.CanonicalString(), " is not served by this worker"));
}

Tier TierOf(kv::KvChoice choice,
            const kv::KvAutoRule& automatic,
            int64_t prompt_tokens,
            const KvPressure& pressure) {
  if (choice == kv::KvChoice::kAuto && prompt_tokens >= automatic.exact_below_tokens) {
    choice = pressure.free_share < kAutoPressure ? automatic.under_pressure : automatic.choice;
  }
  switch (choice) {
    case kv::KvChoice::kTierExact:
      return kExact;
    case kv::KvChoice::kTierHigh:
      return kHigh;
    case kv::KvChoice::kTierBalanced:
      return kBalanced;
    case kv::KvChoice::kTierEconomy:
      return kEconomy;
    case kv::KvChoice::kAuto:
      break;
  }
  return kExact;
}

kv::KvPolicyDefaults DefaultsOf(const kv::CodecSet& codecs) {
  return codecs.calibration() == nullptr ? kv::KvPolicyDefaults() : codecs.calibration()->defaults;
}

absl::StatusOr<kv::KvFormatPolicy> TierPolicy(const kv::CodecSet& codecs, Tier tier) {
  const size_t index = static_cast<size_t>(tier) - 1;
  if (codecs.calibration() != nullptr && codecs.calibration()->tiers.has_value()) {
    return (*codecs.calibration()->tiers)[index];
  }
  BATON_ASSIGN_OR_RETURN(const kv::KvPolicy policy, kv::ParseKvPolicy(kTierPolicies[index]));
  return *policy.format();
}

absl::StatusOr<KvChoice> ChooseFormat(const kv::CodecSet& codecs,
                                      const kv::KvFormatPolicy& format,
                                      int64_t prompt_tokens) {
  KvChoice choice = {.policy = format,
                     .spelling = codecs.calibration() == nullptr ? kv::KvSpelling::kShort
                                                                 : kv::KvSpelling::kExplicit};
  if (format.hidden != kv::HiddenWire::kNone) {
    if (!codecs.has_upper_layers()) {
      return absl::InvalidArgumentError(
          absl::StrCat("kv_policy: ",
                       format.CanonicalString(),
                       " needs a SwiftKV model, whose upper layers are made from a hidden state"));
    }
    choice.hidden = codecs.hidden();
    if (choice.hidden == nullptr) {
      return NotServed({.value = format});
    }
  }
  if (format.id() == kv::KvFormatId::kDense) {
    return choice;
  }
  choice.encoded = codecs.Find(format.id());
  if (choice.encoded == nullptr) {
    return NotServed({.value = format});
  }
  if (choice.encoded->PrefersDense(format.resident, prompt_tokens)) {
    choice.policy.resident = kv::DensePolicy{};
    choice.encoded = nullptr;
  }
  return choice;
}

// The tier's policy, or that of the next better tier that is served.
absl::StatusOr<KvChoice> ChooseTier(const kv::CodecSet& codecs, Tier tier, int64_t prompt_tokens) {
  for (size_t i = tier; i > kExact; --i) {
    BATON_ASSIGN_OR_RETURN(const kv::KvFormatPolicy policy,
                           TierPolicy(codecs, static_cast<Tier>(i)));
    if (absl::StatusOr<KvChoice> choice = ChooseFormat(codecs, policy, prompt_tokens);
        choice.ok()) {
      return choice;
    }
  }
  return KvChoice{};
}

}  // namespace

absl::StatusOr<KvChoice> ChooseKv(const kv::CodecSet& codecs,
                                  std::string_view policy,
                                  int64_t prompt_tokens,
                                  const KvPressure& pressure) {
  BATON_ASSIGN_OR_RETURN(const kv::KvPolicy parsed, kv::ParseKvPolicy(policy, DefaultsOf(codecs)));
  if (parsed.is_baseline()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_policy: ",
                     parsed.CanonicalString(),
                     " is a baseline for comparisons in baton-lab; no worker serves it"));
  }
  if (parsed.choice().has_value()) {
    const kv::KvAutoRule automatic =
        codecs.calibration() == nullptr ? kv::KvAutoRule() : codecs.calibration()->automatic;
    return ChooseTier(
        codecs, TierOf(*parsed.choice(), automatic, prompt_tokens, pressure), prompt_tokens);
  }
  return ChooseFormat(codecs, *parsed.format(), prompt_tokens);
}

int32_t ShippedLayers(const kv::KvFormat& dense, const KvChoice& kv) {
  return kv.hidden != nullptr ? kv.hidden->full_layers() : dense.page_tables();
}

kv::WindowShape PromptWindow(const kv::KvFormat& dense, const KvChoice& kv, int64_t prompt_tokens) {
  return kv.encoded != nullptr
             ? kv.encoded->window(kv.policy.resident, prompt_tokens)
             : kv::WindowShape{.pages_per_layer = dense.PagesPerTable(prompt_tokens),
                               .page_bytes = static_cast<int64_t>(dense.page_bytes())};
}

kv::StagedShape PromptShape(const kv::KvFormat& dense, const KvChoice& kv, int64_t prompt_tokens) {
  kv::StagedShape shape = {.layers = ShippedLayers(dense, kv),
                           .window = PromptWindow(dense, kv, prompt_tokens)};
  if (kv.hidden != nullptr) {
    const kv::HiddenShape hidden = kv.hidden->Shape(kv.policy, prompt_tokens);
    shape.hidden_pages = hidden.pages();
    shape.hidden_page_bytes = hidden.page_bytes();
  }
  return shape;
}

}  // namespace baton::engine
