// The parameters of each KV policy. Defaults are those of an empty parameter list; ranges are in
// policy_fields.cc, which is also where the keys are.
#pragma once

#include <cstdint>
#include <string_view>
#include <variant>

namespace baton::kv {

// How many tokens a sparse method keeps or attends per step: so many, or a share of the prompt.
// Exactly one member is set (not 0).
struct KvBudget {
  int32_t tokens = 0;
  double fraction = 0.0;  // in (0, 1]

  // Tokens for a prompt; at least 1.
  int32_t Tokens(int64_t prompt_tokens) const {
    const auto share = static_cast<int32_t>(fraction * static_cast<double>(prompt_tokens));
    return tokens > 0 ? tokens : (share < 1 ? 1 : share);
  }
  bool whole_prompt() const { return tokens == 0 && fraction == 1.0; }
  bool operator==(const KvBudget&) const = default;
};

// Unquantized keys and values.
struct DensePolicy {
  static constexpr std::string_view kName = "dense";
  bool operator==(const DensePolicy&) const = default;
};

// float8_e4m3fn keys and values with one scale per token and KV head (SwiftKV appendix B.1).
struct Fp8Policy {
  static constexpr std::string_view kName = "fp8";
  bool operator==(const Fp8Policy&) const = default;
};

// Bits of keys and values in a DiffKV tier: k8v4 has 8-bit keys and 4-bit values.
enum class KvTier : uint8_t { kK8V8, kK8V4, kK4V4, kK4V2 };

constexpr int KeyBits(KvTier tier) {
  return tier == KvTier::kK8V8 || tier == KvTier::kK8V4 ? 8 : 4;
}
constexpr int ValueBits(KvTier tier) {
  return tier == KvTier::kK8V8 ? 8 : (tier == KvTier::kK4V2 ? 2 : 4);
}

// DiffKV (section 4, Algorithm 1): tokens in two precision tiers by significance score, or pruned.
struct DiffKvPolicy {
  static constexpr std::string_view kName = "diffkv";

  // Queries whose attention a prompt token's score is taken from.
  enum class Score : uint8_t { kLastWindow, kAll };
  // What the thresholds are divided by: the prompt's tokens N, or the token's own index i.
  enum class Base : uint8_t { kPromptTokens, kTokenIndex };
  // Who moves down a tier in decode: the decision table of the released code, or the paper's.
  enum class Decision : uint8_t { kRelease, kPaper };

  KvTier high = KvTier::kK8V4;
  KvTier low = KvTier::kK4V2;  // neither keys nor values wider than `high`
  float alpha_high = 1.0f;     // scores from alpha_high / base on are high
  float alpha_low = 0.02f;     // scores below alpha_low / base are pruned; 0: nothing is
  Score score = Score::kLastWindow;
  Base base = Base::kPromptTokens;
  Decision decision = Decision::kRelease;
  int32_t window = 64;  // newest tokens, always high
  int32_t sinks = 0;    // first tokens, always high
  // Generated tokens from one that scores stored tokens and moves one down to the next such: those
  // whose position + 1 is a multiple. A power of two.
  int32_t every = 1;

  bool operator==(const DiffKvPolicy&) const = default;
};

// ShadowKV (Algorithms 1 and 2): low-rank keys, landmarks per chunk of tokens, sparse attention.
struct ShadowKvPolicy {
  static constexpr std::string_view kName = "shadowkv";

  // What a chunk is scored by: the mean of its keys, their per-channel bounds, or 2-bit keys.
  enum class Selection : uint8_t { kMean, kBounds, kQ2 };
  // Generated tokens: folded into chunks once a block of them is full, or kept exact.
  enum class Generated : uint8_t { kBlocks, kExact };
  enum class ValueType : uint8_t { kBF16, kV8, kV4, kV2 };
  enum class ValuePlace : uint8_t { kDevice, kHost };
  // Element type of the left factor A of K = A B.
  enum class FactorType : uint8_t { kBF16, kInt8 };
  enum class LandmarkType : uint8_t { kBF16, kInt8 };

  int32_t rank = 160;
  int32_t chunk_tokens = 8;
  Selection selection = Selection::kMean;
  KvBudget budget = {.fraction = 0.0625};  // tokens selected per step; static chunks come on top
  int32_t outlier_chunks = 48;             // kept exact because their landmark is unlike their keys
  int32_t local_chunks = 8;                // last of the prompt, kept exact
  int32_t sink_chunks = 1;                 // first of the prompt, kept exact
  Generated generated = Generated::kBlocks;
  ValueType values = ValueType::kV4;
  ValuePlace value_place = ValuePlace::kDevice;
  FactorType factor = FactorType::kBF16;
  LandmarkType landmarks = LandmarkType::kBF16;
  int32_t joint_rank = 0;  // rank of one factorization for all upper SwiftKV layers; 0: per layer

  bool operator==(const ShadowKvPolicy&) const = default;
};

// Baselines of the lab. No worker serves them; they are here so that every row of a comparison is
// named by one grammar.
struct Int4Policy {
  static constexpr std::string_view kName = "int4";
  bool operator==(const Int4Policy&) const = default;
};
struct KiviPolicy {
  static constexpr std::string_view kName = "kivi";
  bool operator==(const KiviPolicy&) const = default;
};
struct SnapKvPolicy {
  static constexpr std::string_view kName = "snapkv";
  KvBudget budget;
  bool operator==(const SnapKvPolicy&) const = default;
};
struct H2oPolicy {
  static constexpr std::string_view kName = "h2o";
  KvBudget budget;
  bool operator==(const H2oPolicy&) const = default;
};
struct StreamingPolicy {
  static constexpr std::string_view kName = "streaming";
  KvBudget budget;
  bool operator==(const StreamingPolicy&) const = default;
};
struct QuestPolicy {
  static constexpr std::string_view kName = "quest";
  KvBudget budget;
  int32_t page_tokens = 16;
  bool operator==(const QuestPolicy&) const = default;
};
struct LokiPolicy {
  static constexpr std::string_view kName = "loki";
  KvBudget budget;
  bool operator==(const LokiPolicy&) const = default;
};
// DiffKV's tiers with the same share of high tokens in every head and prompt.
struct StaticPolicy {
  static constexpr std::string_view kName = "static";
  double share = 1.0;  // of prompt tokens that are high, in [0, 1]
  KvTier high = KvTier::kK8V4;
  KvTier low = KvTier::kK4V2;  // neither keys nor values wider than `high`
  bool operator==(const StaticPolicy&) const = default;
};

// In the order of KvFormatId.
using KvResidentPolicy = std::variant<DensePolicy, Fp8Policy, DiffKvPolicy, ShadowKvPolicy>;
using KvBaselinePolicy = std::variant<Int4Policy,
                                      KiviPolicy,
                                      SnapKvPolicy,
                                      H2oPolicy,
                                      StreamingPolicy,
                                      QuestPolicy,
                                      LokiPolicy,
                                      StaticPolicy>;

}  // namespace baton::kv
