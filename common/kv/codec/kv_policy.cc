#include "common/kv/codec/kv_policy.h"

#include <array>
#include <cstddef>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

#include "common/base/status_macros.h"
#include "common/kv/codec/policy_fields.h"
#include "common/kv/codec/policy_params.h"

namespace baton::kv {
namespace {

// Longest part of an input that a message repeats.
constexpr size_t kMaxQuotedBytes = 64;

constexpr std::array<std::pair<std::string_view, KvChoice>, 5> kChoices = {{
    {"auto", KvChoice::kAuto},
    {"tier=exact", KvChoice::kTierExact},
    {"tier=high", KvChoice::kTierHigh},
    {"tier=balanced", KvChoice::kTierBalanced},
    {"tier=economy", KvChoice::kTierEconomy},
}};
constexpr std::string_view kTierPrefix = "tier=";
constexpr std::array<std::pair<std::string_view, HiddenWire>, 2> kHiddenPrefixes = {{
    {"hidden+", HiddenWire::kBF16},
    {"hidden8+", HiddenWire::kFp8},
}};

std::string Quote(std::string_view text) {
  const std::string_view shown = text.substr(0, kMaxQuotedBytes);
  return absl::StrCat("\"",
                      absl::CHexEscape(absl::string_view(shown.data(), shown.size())),
                      text.size() > shown.size() ? "..." : "",
                      "\"");
}

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(absl::StrCat("kv_policy: ", parts...));
}

// "name:key=value,..." cut at the colon; `list` is null without one.
struct NameAndList {
  explicit NameAndList(std::string_view text) : name(text.substr(0, text.find(':'))) {
    if (name.size() < text.size()) {
      list = text.substr(name.size() + 1);
    }
  }

  std::string_view name;
  std::optional<std::string_view> list;
};

template <typename Params>
std::string KeyNames() {
  std::string names;
  for (const auto& field : PolicyFields<Params>()) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", std::string(field.key));
  }
  return names;
}

// Reads one "key=value" and marks its field in `seen`.
template <typename Params>
absl::Status ParseEntry(std::string_view entry, Params& params, std::vector<bool>& seen) {
  const std::string policy(Params::kName);
  const size_t equals = entry.find('=');
  const std::string_view key = entry.substr(0, equals);
  const auto& fields = PolicyFields<Params>();
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].key != key) {
      continue;
    }
    const std::string name = absl::StrCat(policy, " key `", std::string(key), "`");
    if (seen[i]) {
      return Invalid(name, " is given twice in ", Quote(entry), "; once is allowed");
    }
    seen[i] = true;
    if (equals == std::string_view::npos) {
      return Invalid(name, " has no value; allowed: ", fields[i].allowed);
    }
    const std::string_view value = entry.substr(equals + 1);
    if (!fields[i].parse(value, params)) {
      return Invalid(name, " is ", Quote(value), "; allowed: ", fields[i].allowed);
    }
    return absl::OkStatus();
  }
  if (fields.empty()) {
    return Invalid(policy, " has no key ", Quote(key), "; it has no keys");
  }
  return Invalid(policy, " has no key ", Quote(key), "; its keys: ", KeyNames<Params>());
}

// What keys left out are; the parameters' own defaults for families that nobody calibrates.
template <typename Params>
Params DefaultOf(const KvPolicyDefaults::Family& /*defaults*/) {
  return {};
}
template <>
DiffKvPolicy DefaultOf(const KvPolicyDefaults::Family& defaults) {
  return defaults.diffkv;
}
template <>
ShadowKvPolicy DefaultOf(const KvPolicyDefaults::Family& defaults) {
  return defaults.shadowkv;
}

// `params` come with the values of keys that the list leaves out.
template <typename Params>
absl::StatusOr<Params> ParseList(std::optional<std::string_view> list, Params params) {
  const auto& fields = PolicyFields<Params>();
  std::vector<bool> seen(fields.size(), false);
  while (list.has_value()) {
    const size_t comma = list->find(',');
    BATON_RETURN_IF_ERROR(ParseEntry(list->substr(0, comma), params, seen));
    list = comma == std::string_view::npos ? std::nullopt : std::optional(list->substr(comma + 1));
  }
  const std::string policy(Params::kName);
  for (size_t i = 0; i < fields.size(); ++i) {
    if (fields[i].required && !seen[i]) {
      return Invalid(
          policy, " needs key `", std::string(fields[i].key), "`; allowed: ", fields[i].allowed);
    }
  }
  if (const std::string conflict = PolicyConflict(params); !conflict.empty()) {
    return Invalid(policy, " key ", conflict);
  }
  return params;
}

// Parses the alternative of Variant whose kName is `text.name`; nothing when there is none.
template <typename Variant, size_t kIndex = 0>
std::optional<absl::StatusOr<Variant>> ParseAlternative(const NameAndList& text,
                                                        const KvPolicyDefaults::Family& defaults) {
  if constexpr (kIndex < std::variant_size_v<Variant>) {
    using Params = std::variant_alternative_t<kIndex, Variant>;
    if (text.name == Params::kName) {
      return ParseList(text.list, DefaultOf<Params>(defaults));
    }
    return ParseAlternative<Variant, kIndex + 1>(text, defaults);
  }
  return std::nullopt;
}

absl::StatusOr<KvPolicy> ParseHidden(std::string_view text,
                                     std::string_view prefix,
                                     HiddenWire hidden,
                                     const KvPolicyDefaults& defaults) {
  const NameAndList rest(text.substr(prefix.size()));
  auto resident = ParseAlternative<KvResidentPolicy>(rest, defaults.of(hidden));
  if (!resident.has_value() || rest.name == Fp8Policy::kName) {
    return Invalid("`",
                   std::string(prefix),
                   "` is followed by ",
                   Quote(rest.name),
                   "; allowed: dense, diffkv, shadowkv");
  }
  BATON_RETURN_IF_ERROR(resident->status());
  return KvPolicy{KvFormatPolicy{.hidden = hidden, .resident = **std::move(resident)}};
}

// Every parameter, or those whose text differs from that of the default and the required ones.
template <typename Params>
std::string Spell(const Params& params, KvSpelling spelling) {
  const Params defaults;
  std::string text(Params::kName);
  std::string_view separator = ":";
  for (const auto& field : PolicyFields<Params>()) {
    const std::string value = field.print(params);
    if (spelling == KvSpelling::kExplicit || field.required || value != field.print(defaults)) {
      absl::StrAppend(&text, std::string(separator), std::string(field.key), "=", value);
      separator = ",";
    }
  }
  return text;
}

std::string Spell(KvChoice choice) {
  for (const auto& [word, value] : kChoices) {
    if (value == choice) {
      return std::string(word);
    }
  }
  return "unknown";
}

}  // namespace

std::string_view KvFormatName(KvFormatId id) {
  switch (id) {
    case KvFormatId::kDense:
      return DensePolicy::kName;
    case KvFormatId::kFp8:
      return Fp8Policy::kName;
    case KvFormatId::kDiffKv:
      return DiffKvPolicy::kName;
    case KvFormatId::kShadowKv:
      return ShadowKvPolicy::kName;
  }
  return "unknown";
}

std::string KvFormatPolicy::CanonicalString(KvSpelling spelling) const {
  std::string text;
  for (const auto& [prefix, value] : kHiddenPrefixes) {
    if (value == hidden) {
      text = prefix;
    }
  }
  return text + std::visit([&](const auto& params) { return Spell(params, spelling); }, resident);
}

std::optional<KvChoice> KvPolicy::choice() const {
  const auto* choice = std::get_if<KvChoice>(&value);
  return choice == nullptr ? std::nullopt : std::optional(*choice);
}

std::string KvPolicy::CanonicalString(KvSpelling spelling) const {
  if (format() != nullptr) {
    return format()->CanonicalString(spelling);
  }
  if (baseline() != nullptr) {
    return std::visit([&](const auto& params) { return Spell(params, spelling); }, *baseline());
  }
  return Spell(*choice());
}

KvPolicyDefaults KvPolicyDefaults::Widest() {
  KvPolicyDefaults defaults;
  for (Family& family : defaults.families) {
    family.diffkv.high = KvTier::kK8V8;
    family.diffkv.low = KvTier::kK4V2;
    family.diffkv.alpha_high = std::numeric_limits<float>::max();
    family.diffkv.alpha_low = 0.0f;
  }
  return defaults;
}

absl::StatusOr<KvPolicy> ParseKvPolicy(std::string_view text, const KvPolicyDefaults& defaults) {
  if (text.size() > kMaxKvPolicyBytes) {
    return Invalid(Quote(text), " has ", text.size(), " bytes; allowed: ", kMaxKvPolicyBytes);
  }
  for (const auto& [word, choice] : kChoices) {
    if (text == word) {
      return KvPolicy{choice};
    }
  }
  if (text.starts_with(kTierPrefix)) {
    return Invalid("key `tier` is ",
                   Quote(text.substr(kTierPrefix.size())),
                   "; allowed: exact|high|balanced|economy");
  }
  for (const auto& [prefix, hidden] : kHiddenPrefixes) {
    if (text.starts_with(prefix)) {
      return ParseHidden(text, prefix, hidden, defaults);
    }
  }
  const NameAndList parts(text);
  const KvPolicyDefaults::Family& plain = defaults.of(HiddenWire::kNone);
  if (auto resident = ParseAlternative<KvResidentPolicy>(parts, plain)) {
    BATON_RETURN_IF_ERROR(resident->status());
    return KvPolicy{KvFormatPolicy{.resident = **std::move(resident)}};
  }
  if (auto baseline = ParseAlternative<KvBaselinePolicy>(parts, plain)) {
    BATON_RETURN_IF_ERROR(baseline->status());
    return KvPolicy{**std::move(baseline)};
  }
  return Invalid("unknown policy ",
                 Quote(text),
                 "; known: dense, fp8, diffkv, shadowkv, hidden+F, hidden8+F, auto, "
                 "tier=exact|high|balanced|economy; in baton-lab also int4, kivi, snapkv, h2o, "
                 "streaming, quest, loki, static");
}

}  // namespace baton::kv
