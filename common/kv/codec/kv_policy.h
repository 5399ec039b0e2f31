// The KV policy of a request: which format, with which parameters, as a short string.
//
//   dense
//   fp8
//   diffkv[:high=,low=,ah=,al=,score=lastw|all,base=N|i,policy=release|paper,w=,sinks=,every=]
//   shadowkv[:rank=,chunk=,sel=mean|bounds|q2,budget=TOKENS|FRACTION,outliers=,local=,sink=,
//            gen=blocks|exact,v=bf16|v8|v4|v2,vplace=device|host,a=bf16|int8,joint=]
//   hidden+F, hidden8+F     F = dense, diffkv or shadowkv with its parameters
//   auto, tier=exact|high|balanced|economy
//   int4, kivi, snapkv:budget=, h2o:budget=, streaming:budget=, quest:budget=,page=, loki:budget=
//
// Keys come in any order, each at most once. Ranges: policy_fields.cc; meanings: policy_params.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "absl/status/statusor.h"

#include "common/kv/codec/policy_params.h"

namespace baton::kv {

// Numbers are those of the wire (common/kv/manifest/segment_header.h, WireFormat).
enum class KvFormatId : uint16_t { kDense = 1, kFp8 = 2, kDiffKv = 3, kShadowKv = 4 };

// "dense", ...; the word in policies, metrics labels and manifests.
std::string_view KvFormatName(KvFormatId id);

// What the upper SwiftKV layers ship instead of pages: nothing else, or the hidden state that
// decode makes their keys and values from, in bf16 or fp8.
enum class HiddenWire : uint8_t { kNone, kBF16, kFp8 };

// A format with its parameters: enough to make a KvFormat from.
struct KvFormatPolicy {
  HiddenWire hidden = HiddenWire::kNone;
  KvResidentPolicy resident = {};  // dense by default

  KvFormatId id() const { return static_cast<KvFormatId>(resident.index() + 1); }
  std::string CanonicalString() const;
  bool operator==(const KvFormatPolicy&) const = default;
};

// Leaves the format to the server: by prompt and load, or the format of a quality tier.
enum class KvChoice : uint8_t { kAuto, kTierExact, kTierHigh, kTierBalanced, kTierEconomy };

// A parsed policy: a format, a baseline of the lab, or a choice that somebody has to make first.
// Code that needs a format takes a KvFormatPolicy and so can't be given the others.
struct KvPolicy {
  std::variant<KvFormatPolicy, KvBaselinePolicy, KvChoice> value;  // dense by default

  // Null, or nothing, when the policy is something else.
  const KvFormatPolicy* format() const { return std::get_if<KvFormatPolicy>(&value); }
  const KvBaselinePolicy* baseline() const { return std::get_if<KvBaselinePolicy>(&value); }
  std::optional<KvChoice> choice() const;
  // True for what only the lab runs.
  bool is_baseline() const { return baseline() != nullptr; }

  // The one spelling of this policy: every parameter that differs from its default, in the order of
  // the grammar. ParseKvPolicy(CanonicalString()) gives the policy back.
  std::string CanonicalString() const;
  bool operator==(const KvPolicy&) const = default;
};

// Longest text that ParseKvPolicy looks at; every canonical string is shorter.
inline constexpr size_t kMaxKvPolicyBytes = 512;

// kInvalidArgument, "kv_policy: ...", names the key, what was given and what is allowed; the
// message is printable and below 1 KiB whatever was sent.
absl::StatusOr<KvPolicy> ParseKvPolicy(std::string_view text);

}  // namespace baton::kv
