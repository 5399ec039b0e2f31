#include "common/engine/kv_choice.h"

#include <array>
#include <cstddef>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"

namespace baton::engine {
namespace {

// Prompts below this are kept exact by `auto`: their KV is small.
constexpr int64_t kAutoExactTokens = 1024;
// Below this share of free dense pages `auto` takes the economy tier.
constexpr double kAutoPressure = 0.25;

// What the tiers are without a calibration, best first (docs/kv-formats.md has their measured
// quality).
constexpr std::array<std::string_view, 4> kTierPolicies = {
    "dense", "diffkv:ah=0,al=0", "diffkv:al=0", "diffkv:high=k4v4,ah=0.5,al=0"};
enum Tier : size_t { kExact, kHigh, kBalanced, kEconomy };

absl::Status NotServed(const kv::KvPolicy& policy) {
  return absl::FailedPreconditionError(absl::StrCat(
      "POLICY_NOT_SERVED: kv_policy: ", policy.CanonicalString(), " is not served by this worker"));
}

Tier TierOf(kv::KvChoice choice, int64_t prompt_tokens, const KvPressure& pressure) {
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
  if (prompt_tokens < kAutoExactTokens) {
    return kExact;
  }
  return pressure.free_share < kAutoPressure ? kEconomy : kBalanced;
}

absl::StatusOr<KvChoice> ChooseFormat(const kv::CodecSet& codecs,
                                      const kv::KvFormatPolicy& format,
                                      int64_t prompt_tokens) {
  KvChoice choice = {.policy = format};
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
    if (absl::StatusOr<KvChoice> choice = ChooseKv(codecs, kTierPolicies[i], prompt_tokens);
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
  BATON_ASSIGN_OR_RETURN(const kv::KvPolicy parsed, kv::ParseKvPolicy(policy));
  if (parsed.is_baseline()) {
    return absl::InvalidArgumentError(
        absl::StrCat("kv_policy: ",
                     parsed.CanonicalString(),
                     " is a baseline for comparisons in baton-lab; no worker serves it"));
  }
  if (parsed.choice().has_value()) {
    return ChooseTier(codecs, TierOf(*parsed.choice(), prompt_tokens, pressure), prompt_tokens);
  }
  return ChooseFormat(codecs, *parsed.format(), prompt_tokens);
}

}  // namespace baton::engine
