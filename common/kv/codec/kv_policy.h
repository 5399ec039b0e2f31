// The KV policy of a request: which format, with which parameters, as a short string.
//
//   dense
//   fp8
//   diffkv[:high=,low=,ah=,al=,score=lastw|all,base=N|i,policy=release|paper,w=,sinks=,every=]
//   shadowkv[:rank=,chunk=,sel=mean|bounds|q2,budget=TOKENS|FRACTION,outliers=,local=,sink=,
//            gen=blocks|exact,v=bf16|v8|v4|v2,vplace=device|host,a=bf16|int8,
//            landmarks=bf16|int8,joint=]
//   hidden+F, hidden8+F     F = dense, diffkv or shadowkv with its parameters
//   auto, tier=exact|high|balanced|economy
//   int4, kivi, snapkv:budget=, h2o:budget=, streaming:budget=, quest:budget=,page=, loki:budget=,
//   static:share=SHARE[,high=,low=]
//
// Keys come in any order, each at most once. Ranges: policy_fields.cc; meanings: policy_params.h.
#pragma once

#include <array>
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

// How much a canonical string says: what differs from the defaults of an empty parameter list, or
// every key. The short form means the same only where no calibration replaces those defaults.
enum class KvSpelling : uint8_t { kShort, kExplicit };

// A format with its parameters: enough to make a KvFormat from.
struct KvFormatPolicy {
  HiddenWire hidden = HiddenWire::kNone;
  KvResidentPolicy resident = {};  // dense by default

  KvFormatId id() const { return static_cast<KvFormatId>(resident.index() + 1); }
  std::string CanonicalString(KvSpelling spelling = KvSpelling::kShort) const;
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

  // The one spelling of this policy, in the order of the grammar: every parameter that differs from
  // its default, or all of them. ParseKvPolicy gives the policy back, with kExplicit whatever the
  // defaults are that it is given.
  std::string CanonicalString(KvSpelling spelling = KvSpelling::kShort) const;
  bool operator==(const KvPolicy&) const = default;
};

// Longest text that ParseKvPolicy looks at; every canonical string is shorter.
inline constexpr size_t kMaxKvPolicyBytes = 512;

// What keys that a policy leaves out are, by family: the word in front of the format is part of it.
struct KvPolicyDefaults {
  struct Family {
    DiffKvPolicy diffkv;
    ShadowKvPolicy shadowkv;

    bool operator==(const Family&) const = default;
  };
  std::array<Family, 3> families;  // by HiddenWire

  const Family& of(HiddenWire hidden) const { return families[static_cast<size_t>(hidden)]; }
  Family& of(HiddenWire hidden) { return families[static_cast<size_t>(hidden)]; }
  // Defaults with which no key conflicts: a text is refused only for what it says itself. For those
  // who check a policy that somebody else fills in.
  static KvPolicyDefaults Widest();

  bool operator==(const KvPolicyDefaults&) const = default;
};

// kInvalidArgument, "kv_policy: ...", names the key, what was given and what is allowed; the
// message is printable and below 1 KiB whatever was sent.
absl::StatusOr<KvPolicy> ParseKvPolicy(std::string_view text,
                                       const KvPolicyDefaults& defaults = {});

}  // namespace baton::kv
