#include "common/kv/codec/policy_fields.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/kv/codec/policy_params.h"

namespace baton::kv {
namespace {

// More tokens than this are no budget but all of any prompt.
constexpr int32_t kMaxBudgetTokens = 1 << 20;
constexpr int32_t kMaxQuestPageTokens = 1024;

// True when all of `text` is one number.
template <typename T, typename... Format>
bool ParseWhole(std::string_view text, T& value, Format... format) {
  const auto [end, error] =
      std::from_chars(text.data(), text.data() + text.size(), value, format...);
  return error == std::errc() && end == text.data() + text.size();
}

// Shortest text that reads back to the same value. Room for the smallest double in fixed notation.
template <typename T, typename... Format>
std::string Print(T value, Format... format) {
  std::array<char, 400> text;
  const auto result = std::to_chars(text.data(), text.data() + text.size(), value, format...);
  return {text.data(), result.ptr};
}

template <typename Params>
PolicyField<Params> Integer(std::string_view key,
                            int32_t Params::* member,
                            int32_t least,
                            int32_t most) {
  return {.key = key,
          .allowed = absl::StrCat("an integer in ", least, "..", most),
          .parse =
              [=](std::string_view text, Params& params) {
                int32_t value = 0;
                if (!ParseWhole(text, value) || value < least || value > most) {
                  return false;
                }
                params.*member = value;
                return true;
              },
          .print = [=](const Params& params) { return Print(params.*member); }};
}

template <typename Params>
PolicyField<Params> NotNegative(std::string_view key, float Params::* member) {
  return {.key = key,
          .allowed = "a number from 0 on",
          .parse =
              [=](std::string_view text, Params& params) {
                float value = 0.0f;
                if (!ParseWhole(text, value) || !std::isfinite(value) || std::signbit(value)) {
                  return false;
                }
                params.*member = value;
                return true;
              },
          .print = [=](const Params& params) { return Print(params.*member); }};
}

// Required.
template <typename Params>
PolicyField<Params> Share(std::string_view key, double Params::* member) {
  return {
      .key = key,
      .allowed = "a number in 0..1",
      .required = true,
      .parse =
          [=](std::string_view text, Params& params) {
            double value = 0.0;
            if (!ParseWhole(text, value, std::chars_format::fixed) || std::signbit(value) ||
                !(value <= 1.0)) {
              return false;
            }
            params.*member = value;
            return true;
          },
      .print =
          [=](const Params& params) { return Print(params.*member, std::chars_format::fixed); }};
}

template <typename Params, typename Value>
PolicyField<Params> OneOf(std::string_view key,
                          Value Params::* member,
                          const std::vector<std::pair<std::string_view, Value>>& words) {
  std::string allowed;
  for (const auto& [word, value] : words) {
    absl::StrAppend(&allowed, allowed.empty() ? "" : "|", std::string(word));
  }
  return {.key = key,
          .allowed = std::move(allowed),
          .parse =
              [=](std::string_view text, Params& params) {
                for (const auto& [word, value] : words) {
                  if (word == text) {
                    params.*member = value;
                    return true;
                  }
                }
                return false;
              },
          .print =
              [=](const Params& params) {
                for (const auto& [word, value] : words) {
                  if (value == params.*member) {
                    return std::string(word);
                  }
                }
                return std::string();
              }};
}

// A dot tells a fraction from a count, so fractions are written without an exponent.
bool ParseBudget(std::string_view text, KvBudget& budget) {
  if (text.find('.') == std::string_view::npos) {
    int32_t tokens = 0;
    if (!ParseWhole(text, tokens) || tokens < 1 || tokens > kMaxBudgetTokens) {
      return false;
    }
    budget = {.tokens = tokens};
    return true;
  }
  double fraction = 0.0;
  if (!ParseWhole(text, fraction, std::chars_format::fixed) ||
      !(fraction > 0.0 && fraction <= 1.0)) {
    return false;
  }
  budget = {.fraction = fraction};
  return true;
}

std::string PrintBudget(const KvBudget& budget) {
  if (budget.tokens > 0) {
    return Print(budget.tokens);
  }
  return budget.whole_prompt() ? "1.0" : Print(budget.fraction, std::chars_format::fixed);
}

template <typename Params>
PolicyField<Params> Budget(bool required) {
  return {.key = "budget",
          .allowed = absl::StrCat("tokens, an integer in 1..",
                                  kMaxBudgetTokens,
                                  ", or a fraction of the prompt up to 1.0 written with a dot"),
          .required = required,
          .parse = [](std::string_view text,
                      Params& params) { return ParseBudget(text, params.budget); },
          .print = [](const Params& params) { return PrintBudget(params.budget); }};
}

template <typename Params>
const std::vector<PolicyField<Params>>& BudgetOnly() {
  static const auto& fields = *new std::vector<PolicyField<Params>>{Budget<Params>(true)};
  return fields;
}

std::string TierName(KvTier tier) { return absl::StrCat("k", KeyBits(tier), "v", ValueBits(tier)); }

template <typename Params>
PolicyField<Params> Tier(std::string_view key, KvTier Params::* member) {
  return OneOf(key,
               member,
               {{"k8v8", KvTier::kK8V8},
                {"k8v4", KvTier::kK8V4},
                {"k4v4", KvTier::kK4V4},
                {"k4v2", KvTier::kK4V2}});
}

// What is wrong with a pair of tiers, or empty.
std::string TierConflict(KvTier high, KvTier low) {
  if (KeyBits(high) >= KeyBits(low) && ValueBits(high) >= ValueBits(low)) {
    return "";
  }
  return absl::StrCat("`high` is ",
                      TierName(high),
                      " and `low` is ",
                      TierName(low),
                      "; `high` must not be narrower than `low` in keys or values");
}

}  // namespace

template <>
const std::vector<PolicyField<DiffKvPolicy>>& PolicyFields() {
  using P = DiffKvPolicy;
  static const auto& fields = *new std::vector<PolicyField<P>>{
      Tier("high", &P::high),
      Tier("low", &P::low),
      NotNegative("ah", &P::alpha_high),
      NotNegative("al", &P::alpha_low),
      OneOf("score", &P::score, {{"lastw", P::Score::kLastWindow}, {"all", P::Score::kAll}}),
      OneOf("base", &P::base, {{"N", P::Base::kPromptTokens}, {"i", P::Base::kTokenIndex}}),
      OneOf("policy",
            &P::decision,
            {{"release", P::Decision::kRelease}, {"paper", P::Decision::kPaper}}),
      Integer("w", &P::window, 0, 64),
      Integer("sinks", &P::sinks, 0, INT32_MAX),
      OneOf("every",
            &P::every,
            {{"1", 1}, {"2", 2}, {"4", 4}, {"8", 8}, {"16", 16}, {"32", 32}, {"64", 64}}),
  };
  return fields;
}

template <>
const std::vector<PolicyField<ShadowKvPolicy>>& PolicyFields() {
  using P = ShadowKvPolicy;
  static const auto& fields = *new std::vector<PolicyField<P>>{
      Integer("rank", &P::rank, 1, 1024),
      OneOf("chunk", &P::chunk_tokens, {{"1", 1}, {"2", 2}, {"4", 4}, {"8", 8}}),
      OneOf("sel",
            &P::selection,
            {{"mean", P::Selection::kMean},
             {"bounds", P::Selection::kBounds},
             {"q2", P::Selection::kQ2}}),
      Budget<P>(false),
      Integer("outliers", &P::outlier_chunks, 0, 4096),
      Integer("local", &P::local_chunks, 0, 64),
      Integer("sink", &P::sink_chunks, 0, 64),
      OneOf("gen",
            &P::generated,
            {{"blocks", P::Generated::kBlocks}, {"exact", P::Generated::kExact}}),
      OneOf("v",
            &P::values,
            {{"bf16", P::ValueType::kBF16},
             {"v8", P::ValueType::kV8},
             {"v4", P::ValueType::kV4},
             {"v2", P::ValueType::kV2}}),
      OneOf("vplace",
            &P::value_place,
            {{"device", P::ValuePlace::kDevice}, {"host", P::ValuePlace::kHost}}),
      OneOf("a", &P::factor, {{"bf16", P::FactorType::kBF16}, {"int8", P::FactorType::kInt8}}),
      OneOf("landmarks",
            &P::landmarks,
            {{"bf16", P::LandmarkType::kBF16}, {"int8", P::LandmarkType::kInt8}}),
      Integer("joint", &P::joint_rank, 0, 4096),
  };
  return fields;
}

template <>
const std::vector<PolicyField<SnapKvPolicy>>& PolicyFields() {
  return BudgetOnly<SnapKvPolicy>();
}

template <>
const std::vector<PolicyField<H2oPolicy>>& PolicyFields() {
  return BudgetOnly<H2oPolicy>();
}

template <>
const std::vector<PolicyField<StreamingPolicy>>& PolicyFields() {
  return BudgetOnly<StreamingPolicy>();
}

template <>
const std::vector<PolicyField<QuestPolicy>>& PolicyFields() {
  static const auto& fields = *new std::vector<PolicyField<QuestPolicy>>{
      Budget<QuestPolicy>(true),
      Integer("page", &QuestPolicy::page_tokens, 1, kMaxQuestPageTokens),
  };
  return fields;
}

template <>
const std::vector<PolicyField<LokiPolicy>>& PolicyFields() {
  return BudgetOnly<LokiPolicy>();
}

template <>
const std::vector<PolicyField<StaticPolicy>>& PolicyFields() {
  using P = StaticPolicy;
  static const auto& fields = *new std::vector<PolicyField<P>>{
      Share("share", &P::share),
      Tier("high", &P::high),
      Tier("low", &P::low),
  };
  return fields;
}

template <>
std::string PolicyConflict(const DiffKvPolicy& params) {
  if (std::string conflict = TierConflict(params.high, params.low); !conflict.empty()) {
    return conflict;
  }
  if (params.alpha_low > params.alpha_high) {
    return absl::StrCat("`al` is ",
                        Print(params.alpha_low),
                        " and `ah` is ",
                        Print(params.alpha_high),
                        "; `al` must not exceed `ah`");
  }
  return "";
}

template <>
std::string PolicyConflict(const ShadowKvPolicy& params) {
  const bool means = params.selection == ShadowKvPolicy::Selection::kMean;
  return means || params.landmarks == ShadowKvPolicy::LandmarkType::kBF16
             ? ""
             : "`landmarks` is int8, which only `sel=mean` can have";
}

template <>
std::string PolicyConflict(const StaticPolicy& params) {
  return TierConflict(params.high, params.low);
}

}  // namespace baton::kv
