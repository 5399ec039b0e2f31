// Random policies, written and read back.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"

namespace baton::kv {
namespace {

constexpr int kPolicies = 20000;

// Draws policies whose every member is in range.
class RandomPolicy {
 public:
  explicit RandomPolicy(uint32_t seed) : random_(seed) {}

  KvPolicy Draw() {
    switch (Integer(0, 9)) {
      case 0:
        return KvPolicy{static_cast<KvChoice>(Integer(0, 4))};
      case 1:
        return KvPolicy{Baseline()};
      default:
        break;
    }
    KvFormatPolicy format;
    switch (Integer(0, 3)) {
      case 0:
        format.resident = DensePolicy{};
        break;
      case 1:
        format.resident = Fp8Policy{};
        return KvPolicy{format};
      case 2:
        format.resident = DiffKv();
        break;
      default:
        format.resident = ShadowKv();
        break;
    }
    format.hidden = static_cast<HiddenWire>(Integer(0, 2));
    return KvPolicy{format};
  }

 private:
  int32_t Integer(int32_t least, int32_t most) {
    return std::uniform_int_distribution<int32_t>(least, most)(random_);
  }
  // Half of the members keep their default.
  template <typename Member>
  void Maybe(Member& member, Member value) {
    if (Integer(0, 1) == 0) {
      member = value;
    }
  }
  // Any finite float from 0 on, every exponent alike.
  float Float() {
    const auto bits = static_cast<uint32_t>(Integer(0, INT32_MAX));
    const auto value = std::bit_cast<float>(bits);
    return std::isfinite(value) ? value : 1.0f;
  }
  // Any double in (0, 1), every exponent alike.
  double Fraction() {
    const uint64_t bits =
        std::uniform_int_distribution<uint64_t>(1, std::bit_cast<uint64_t>(1.0) - 1)(random_);
    return std::bit_cast<double>(bits);
  }
  KvBudget Budget() {
    if (Integer(0, 1) == 0) {
      return {.tokens = Integer(1, 1 << 20)};
    }
    return {.fraction = Fraction()};
  }

  DiffKvPolicy DiffKv() {
    DiffKvPolicy p;
    const std::vector<std::pair<KvTier, KvTier>> tiers = {{KvTier::kK8V8, KvTier::kK8V8},
                                                          {KvTier::kK8V8, KvTier::kK4V2},
                                                          {KvTier::kK8V4, KvTier::kK4V4},
                                                          {KvTier::kK4V4, KvTier::kK4V2}};
    std::tie(p.high, p.low) = tiers[static_cast<size_t>(Integer(0, 3))];
    if (Integer(0, 1) == 0) {
      const float a = Float();
      const float b = Float();
      p.alpha_high = std::max(a, b);
      p.alpha_low = std::min(a, b);
    }
    Maybe(p.score, DiffKvPolicy::Score::kAll);
    Maybe(p.base, DiffKvPolicy::Base::kTokenIndex);
    Maybe(p.decision, DiffKvPolicy::Decision::kPaper);
    Maybe(p.window, Integer(0, 64));
    Maybe(p.sinks, Integer(0, INT32_MAX));
    Maybe(p.every, 1 << Integer(0, 6));
    return p;
  }

  ShadowKvPolicy ShadowKv() {
    ShadowKvPolicy p;
    Maybe(p.rank, Integer(1, 1024));
    Maybe(p.chunk_tokens, 1 << Integer(0, 3));
    Maybe(p.selection, static_cast<ShadowKvPolicy::Selection>(Integer(0, 2)));
    Maybe(p.budget, Budget());
    Maybe(p.outlier_chunks, Integer(0, 4096));
    Maybe(p.local_chunks, Integer(0, 64));
    Maybe(p.sink_chunks, Integer(0, 64));
    Maybe(p.generated, ShadowKvPolicy::Generated::kExact);
    Maybe(p.values, static_cast<ShadowKvPolicy::ValueType>(Integer(0, 3)));
    Maybe(p.value_place, ShadowKvPolicy::ValuePlace::kHost);
    Maybe(p.factor, ShadowKvPolicy::FactorType::kInt8);
    Maybe(p.joint_rank, Integer(0, 4096));
    return p;
  }

  KvBaselinePolicy Baseline() {
    switch (Integer(0, 7)) {
      case 0:
        return Int4Policy{};
      case 1:
        return KiviPolicy{};
      case 2:
        return SnapKvPolicy{.budget = Budget()};
      case 3:
        return H2oPolicy{.budget = Budget()};
      case 4:
        return StreamingPolicy{.budget = Budget()};
      case 5:
        return QuestPolicy{.budget = Budget(), .page_tokens = Integer(1, 1024)};
      case 6:
        return LokiPolicy{.budget = Budget()};
      default:
        return StaticPolicy{.share = Fraction(), .high = KvTier::kK8V8, .low = KvTier::kK4V4};
    }
  }

  std::mt19937 random_;
};

TEST(KvPolicyRoundTripTest, RandomPoliciesComeBackFromTheirCanonicalStrings) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  RandomPolicy random(seed);
  for (int i = 0; i < kPolicies; ++i) {
    const KvPolicy policy = random.Draw();
    const std::string text = policy.CanonicalString();
    const auto parsed = ParseKvPolicy(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_EQ(*parsed, policy) << text;
    ASSERT_EQ(parsed->CanonicalString(), text);
    ASSERT_LE(text.size(), kMaxKvPolicyBytes);
  }
}

TEST(KvPolicyRoundTripTest, KeysMayComeInAnyOrder) {
  const uint32_t seed = std::random_device()();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  std::vector<std::string> entries = {"high=k8v8",
                                      "low=k8v4",
                                      "ah=3",
                                      "al=0.5",
                                      "score=all",
                                      "base=i",
                                      "policy=paper",
                                      "w=1",
                                      "sinks=2",
                                      "every=4"};
  const auto join = [&] {
    std::string text = "diffkv";
    for (size_t i = 0; i < entries.size(); ++i) {
      text += (i == 0 ? ":" : ",") + entries[i];
    }
    return text;
  };
  const std::string canonical = join();
  for (int i = 0; i < 100; ++i) {
    std::shuffle(entries.begin(), entries.end(), random);
    const auto parsed = ParseKvPolicy(join());
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    ASSERT_EQ(parsed->CanonicalString(), canonical) << join();
  }
}

}  // namespace
}  // namespace baton::kv
