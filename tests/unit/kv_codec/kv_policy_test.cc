// The grammar of KV policies: what parses to what, what is refused, and how messages read.
#include "common/kv/codec/kv_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "common/kv/codec/policy_params.h"

namespace baton::kv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

KvPolicy Parse(std::string_view text) {
  const auto policy = ParseKvPolicy(text);
  EXPECT_TRUE(policy.ok()) << policy.status();
  return policy.value_or(KvPolicy{});
}

KvPolicy Format(KvResidentPolicy resident, HiddenWire hidden = HiddenWire::kNone) {
  return KvPolicy{KvFormatPolicy{.hidden = hidden, .resident = resident}};
}

TEST(KvPolicyTest, AnUnsetPolicyIsDense) {
  EXPECT_EQ(KvPolicy{}.CanonicalString(), "dense");
  EXPECT_EQ(Parse("dense"), KvPolicy{});
}

TEST(KvPolicyTest, AWordAloneMeansAllDefaults) {
  EXPECT_EQ(Parse("fp8"), Format(Fp8Policy{}));
  EXPECT_EQ(Parse("diffkv"), Format(DiffKvPolicy{}));
  EXPECT_EQ(Parse("shadowkv"), Format(ShadowKvPolicy{}));
  EXPECT_EQ(Parse("int4"), KvPolicy{Int4Policy{}});
  EXPECT_EQ(Parse("kivi"), KvPolicy{KiviPolicy{}});
}

TEST(KvPolicyTest, KeysLeftOutAreTheDefaultsOfTheFamily) {
  KvPolicyDefaults defaults;
  defaults.of(HiddenWire::kNone).diffkv.window = 16;
  defaults.of(HiddenWire::kFp8).diffkv.window = 8;
  defaults.of(HiddenWire::kNone).shadowkv.rank = 7;
  const auto params = [&](std::string_view text) {
    return *ParseKvPolicy(text, defaults)->format();
  };
  EXPECT_EQ(std::get<DiffKvPolicy>(params("diffkv:every=2").resident).window, 16);
  EXPECT_EQ(std::get<DiffKvPolicy>(params("diffkv:w=64").resident).window, 64);
  EXPECT_EQ(std::get<DiffKvPolicy>(params("hidden+diffkv").resident).window, 64);
  EXPECT_EQ(std::get<DiffKvPolicy>(params("hidden8+diffkv").resident).window, 8);
  EXPECT_EQ(std::get<ShadowKvPolicy>(params("shadowkv:chunk=1").resident).rank, 7);
}

TEST(KvPolicyTest, TheExplicitSpellingMeansTheSameWhateverTheDefaults) {
  KvPolicyDefaults other = KvPolicyDefaults::Widest();
  other.of(HiddenWire::kBF16).shadowkv.rank = 7;
  for (const char* text : {"dense",
                           "diffkv",
                           "shadowkv:budget=64",
                           "hidden+shadowkv",
                           "hidden8+diffkv:low=k4v4",
                           "quest:budget=3",
                           "tier=high"}) {
    const KvPolicy policy = Parse(text);
    const std::string spelled = policy.CanonicalString(KvSpelling::kExplicit);
    EXPECT_EQ(*ParseKvPolicy(spelled, other), policy) << spelled;
    EXPECT_LE(spelled.size(), kMaxKvPolicyBytes);
  }
}

TEST(KvPolicyTest, WithTheWidestDefaultsAPolicyConflictsOnlyWithItself) {
  for (const char* text : {"diffkv:ah=0", "diffkv:al=9", "diffkv:high=k4v2", "diffkv:low=k8v8"}) {
    EXPECT_TRUE(ParseKvPolicy(text, KvPolicyDefaults::Widest()).ok()) << text;
  }
  for (const char* text : {"diffkv:ah=1,al=2", "hidden+diffkv:high=k4v4,low=k8v8"}) {
    EXPECT_FALSE(ParseKvPolicy(text, KvPolicyDefaults::Widest()).ok()) << text;
  }
}

TEST(KvPolicyTest, EveryKeyOfDiffKvSetsItsMember) {
  using P = DiffKvPolicy;
  EXPECT_EQ(Parse("diffkv:high=k8v8,low=k4v4,ah=2.5,al=0,score=all,base=i,policy=paper,w=0,"
                  "sinks=4,every=16"),
            Format(P{.high = KvTier::kK8V8,
                     .low = KvTier::kK4V4,
                     .alpha_high = 2.5f,
                     .alpha_low = 0.0f,
                     .score = P::Score::kAll,
                     .base = P::Base::kTokenIndex,
                     .decision = P::Decision::kPaper,
                     .window = 0,
                     .sinks = 4,
                     .every = 16}));
}

TEST(KvPolicyTest, EveryKeyOfShadowKvSetsItsMember) {
  using P = ShadowKvPolicy;
  EXPECT_EQ(Parse("shadowkv:rank=1024,chunk=4,sel=bounds,budget=2048,outliers=0,local=3,sink=64,"
                  "gen=exact,v=v2,vplace=host,a=int8,joint=512"),
            Format(P{.rank = 1024,
                     .chunk_tokens = 4,
                     .selection = P::Selection::kBounds,
                     .budget = {.tokens = 2048},
                     .outlier_chunks = 0,
                     .local_chunks = 3,
                     .sink_chunks = 64,
                     .generated = P::Generated::kExact,
                     .values = P::ValueType::kV2,
                     .value_place = P::ValuePlace::kHost,
                     .factor = P::FactorType::kInt8,
                     .joint_rank = 512}));
  EXPECT_EQ(Parse("shadowkv:landmarks=int8"), Format(P{.landmarks = P::LandmarkType::kInt8}));
}

TEST(KvPolicyTest, HiddenWrapsAFormatWithItsParameters) {
  EXPECT_EQ(Parse("hidden+dense"), Format(DensePolicy{}, HiddenWire::kBF16));
  EXPECT_EQ(Parse("hidden8+diffkv:w=32"), Format(DiffKvPolicy{.window = 32}, HiddenWire::kFp8));
  EXPECT_EQ(Parse("hidden+shadowkv").format()->id(), KvFormatId::kShadowKv);
}

TEST(KvPolicyTest, ABudgetIsTokensOrAFraction) {
  EXPECT_EQ(Parse("snapkv:budget=1048576"), KvPolicy{SnapKvPolicy{.budget = {.tokens = 1 << 20}}});
  EXPECT_EQ(Parse("h2o:budget=0.5"), KvPolicy{H2oPolicy{.budget = {.fraction = 0.5}}});
  EXPECT_EQ(Parse("streaming:budget=.25"), KvPolicy{StreamingPolicy{.budget = {.fraction = 0.25}}});
  EXPECT_EQ(Parse("quest:page=32,budget=64"),
            KvPolicy(KvBaselinePolicy(QuestPolicy{.budget = {.tokens = 64}, .page_tokens = 32})));
  EXPECT_EQ(Parse("loki:budget=1"), KvPolicy{LokiPolicy{.budget = {.tokens = 1}}});
}

TEST(KvPolicyTest, AStaticShareIsANumberUpToOne) {
  using P = StaticPolicy;
  EXPECT_EQ(Parse("static:share=0"), KvPolicy{P{.share = 0.0}});
  EXPECT_EQ(Parse("static:share=1.0"), KvPolicy{P{.share = 1.0}});
  EXPECT_EQ(Parse("static:low=k4v4,high=k8v8,share=.25"),
            (KvPolicy{P{.share = 0.25, .high = KvTier::kK8V8, .low = KvTier::kK4V4}}));
  EXPECT_TRUE(Parse("static:share=0.5").is_baseline());
}

TEST(KvPolicyTest, AFormatABaselineAndAChoiceExcludeOneAnother) {
  const KvPolicy format = Parse("diffkv");
  EXPECT_EQ(format.format()->id(), KvFormatId::kDiffKv);
  EXPECT_FALSE(format.is_baseline());
  EXPECT_FALSE(format.choice().has_value());

  const KvPolicy baseline = Parse("quest:budget=64");
  EXPECT_EQ(baseline.format(), nullptr);
  EXPECT_TRUE(baseline.is_baseline());
  EXPECT_FALSE(baseline.choice().has_value());

  const KvPolicy choice = Parse("auto");
  EXPECT_EQ(choice.format(), nullptr);
  EXPECT_FALSE(choice.is_baseline());
  EXPECT_EQ(choice.choice(), KvChoice::kAuto);
  EXPECT_EQ(Parse("tier=exact").choice(), KvChoice::kTierExact);
  EXPECT_EQ(Parse("tier=high").choice(), KvChoice::kTierHigh);
  EXPECT_EQ(Parse("tier=balanced").choice(), KvChoice::kTierBalanced);
  EXPECT_EQ(Parse("tier=economy").choice(), KvChoice::kTierEconomy);
}

TEST(KvPolicyTest, FormatNumbersAreThoseOfTheWire) {
  EXPECT_EQ(static_cast<int>(Parse("dense").format()->id()), 1);
  EXPECT_EQ(static_cast<int>(Parse("fp8").format()->id()), 2);
  EXPECT_EQ(static_cast<int>(Parse("diffkv").format()->id()), 3);
  EXPECT_EQ(static_cast<int>(Parse("shadowkv").format()->id()), 4);
  EXPECT_EQ(KvFormatName(KvFormatId::kFp8), "fp8");
  EXPECT_EQ(KvFormatName(KvFormatId::kShadowKv), "shadowkv");
}

TEST(KvPolicyTest, CanonicalStringListsWhatDiffersInTheOrderOfTheGrammar) {
  struct Case {
    std::string given;
    std::string canonical;
  };
  const std::vector<Case> cases = {
      {"diffkv:every=1,w=64,high=k8v4", "diffkv"},
      {"diffkv:every=2,al=0,high=k8v8", "diffkv:high=k8v8,al=0,every=2"},
      {"diffkv:ah=1e20,al=0.00001", "diffkv:ah=1e+20,al=1e-05"},
      {"diffkv:ah=0.1000000000", "diffkv:ah=0.1"},
      {"shadowkv:budget=0.0625", "shadowkv"},
      {"shadowkv:budget=1.00", "shadowkv:budget=1.0"},
      {"quest:budget=1.", "quest:budget=1.0"},
      {"shadowkv:joint=256,budget=0.10", "shadowkv:budget=0.1,joint=256"},
      {"shadowkv:budget=0.00000125,rank=0160", "shadowkv:budget=0.00000125"},
      {"hidden8+shadowkv:v=bf16,vplace=device", "hidden8+shadowkv:v=bf16"},
      {"quest:page=16,budget=64", "quest:budget=64"},
      {"quest:page=8,budget=0.5", "quest:budget=0.5,page=8"},
      {"static:high=k8v4,share=0.250", "static:share=0.25"},
      {"static:low=k4v4,share=1", "static:share=1,low=k4v4"},
      {"tier=balanced", "tier=balanced"},
      {"auto", "auto"},
  };
  for (const Case& c : cases) {
    EXPECT_EQ(Parse(c.given).CanonicalString(), c.canonical);
    EXPECT_EQ(Parse(c.canonical), Parse(c.given));
  }
}

TEST(KvPolicyTest, ARefusalNamesTheKeyWhatWasGivenAndWhatIsAllowed) {
  struct Case {
    std::string given;
    std::vector<std::string> named;
  };
  const std::vector<Case> cases = {
      {"", {"\"\"", "known: dense"}},
      {"Dense", {"\"Dense\"", "known: dense"}},
      {"dense ", {"\"dense \"", "known: dense"}},
      {"k8v4", {"\"k8v4\"", "quest"}},
      {"auto:x=1", {"\"auto:x=1\"", "known: dense"}},
      {"hidden", {"\"hidden\"", "hidden+F"}},
      {"hidden+", {"`hidden+`", "\"\"", "dense, diffkv, shadowkv"}},
      {"hidden+fp8", {"`hidden+`", "\"fp8\"", "dense, diffkv, shadowkv"}},
      {"hidden8+auto", {"`hidden8+`", "\"auto\"", "dense, diffkv, shadowkv"}},
      {"hidden+int4", {"\"int4\"", "dense, diffkv, shadowkv"}},
      {"hidden+hidden+dense", {"\"hidden+dense\"", "dense, diffkv, shadowkv"}},
      {"hidden+diffkv:w=65", {"`w`", "\"65\"", "0..64"}},
      {"tier=", {"`tier`", "\"\"", "exact|high|balanced|economy"}},
      {"tier=low", {"`tier`", "\"low\"", "exact|high|balanced|economy"}},
      {"dense:x=1", {"dense has no key \"x\"", "no keys"}},
      {"dense:", {"dense has no key \"\""}},
      {"int4:w=1", {"int4 has no key \"w\""}},
      {"diffkv:", {"diffkv has no key \"\"", "high, low, ah, al"}},
      {"diffkv:W=1", {"diffkv has no key \"W\"", "high, low, ah, al"}},
      {"diffkv:w=1,", {"diffkv has no key \"\""}},
      {"diffkv:w=1,,al=0", {"diffkv has no key \"\""}},
      {"diffkv: w=1", {"diffkv has no key \" w\""}},
      {"diffkv:w", {"`w`", "no value", "0..64"}},
      {"diffkv:w=", {"`w`", "\"\"", "0..64"}},
      {"diffkv:w=1,w=1", {"`w`", "\"w=1\"", "once"}},
      {"diffkv:w=-1", {"`w`", "\"-1\"", "0..64"}},
      {"diffkv:w=+1", {"`w`", "\"+1\"", "0..64"}},
      {"diffkv:w=1.0", {"`w`", "\"1.0\"", "0..64"}},
      {"diffkv:w=99999999999", {"`w`", "99999999999", "0..64"}},
      {"diffkv:w=1=2", {"`w`", "\"1=2\"", "0..64"}},
      {"diffkv:sinks=-1", {"`sinks`", "\"-1\"", "integer in 0.."}},
      {"diffkv:every=0", {"`every`", "\"0\"", "1|2|4|8|16|32|64"}},
      {"diffkv:every=3", {"`every`", "\"3\"", "1|2|4|8|16|32|64"}},
      {"diffkv:ah=-1", {"`ah`", "\"-1\"", "from 0 on"}},
      {"diffkv:ah=nan", {"`ah`", "\"nan\"", "from 0 on"}},
      {"diffkv:ah=inf", {"`ah`", "\"inf\"", "from 0 on"}},
      {"diffkv:ah=1e99", {"`ah`", "\"1e99\"", "from 0 on"}},
      {"diffkv:al=-0", {"`al`", "\"-0\"", "from 0 on"}},
      {"diffkv:al=1x", {"`al`", "\"1x\"", "from 0 on"}},
      {"diffkv:al=2", {"`al` is 2", "`ah` is 1", "must not exceed"}},
      {"diffkv:ah=0.01", {"`al` is 0.02", "`ah` is 0.01", "must not exceed"}},
      {"diffkv:high=k8v2", {"`high`", "\"k8v2\"", "k8v8|k8v4|k4v4|k4v2"}},
      {"diffkv:low=k8v8", {"`low` is k8v8", "`high` is k8v4", "narrower"}},
      {"diffkv:high=k4v4,low=k8v4", {"`high` is k4v4", "`low` is k8v4", "narrower"}},
      {"diffkv:high=k4v2,low=k4v4", {"`high` is k4v2", "`low` is k4v4", "narrower"}},
      {"diffkv:score=last", {"`score`", "\"last\"", "lastw|all"}},
      {"diffkv:base=n", {"`base`", "\"n\"", "N|i"}},
      {"diffkv:policy=Paper", {"`policy`", "\"Paper\"", "release|paper"}},
      {"shadowkv:rank=0", {"`rank`", "\"0\"", "1..1024"}},
      {"shadowkv:rank=1025", {"`rank`", "\"1025\"", "1..1024"}},
      {"shadowkv:chunk=3", {"`chunk`", "\"3\"", "1|2|4|8"}},
      {"shadowkv:sel=max", {"`sel`", "\"max\"", "mean|bounds|q2"}},
      {"shadowkv:budget=0", {"`budget`", "\"0\"", "tokens", "fraction"}},
      {"shadowkv:budget=1048577", {"`budget`", "\"1048577\""}},
      {"shadowkv:budget=0.0", {"`budget`", "\"0.0\""}},
      {"shadowkv:budget=1.01", {"`budget`", "\"1.01\""}},
      {"shadowkv:budget=1.5e-1", {"`budget`", "\"1.5e-1\""}},
      {"shadowkv:budget=-0.5", {"`budget`", "\"-0.5\""}},
      {"shadowkv:budget=1e3", {"`budget`", "\"1e3\""}},
      {"shadowkv:outliers=4097", {"`outliers`", "\"4097\"", "0..4096"}},
      {"shadowkv:local=65", {"`local`", "\"65\"", "0..64"}},
      {"shadowkv:sink=65", {"`sink`", "\"65\"", "0..64"}},
      {"shadowkv:gen=block", {"`gen`", "\"block\"", "blocks|exact"}},
      {"shadowkv:v=v16", {"`v`", "\"v16\"", "bf16|v8|v4|v2"}},
      {"shadowkv:vplace=cpu", {"`vplace`", "\"cpu\"", "device|host"}},
      {"shadowkv:a=fp8", {"`a`", "\"fp8\"", "bf16|int8"}},
      {"shadowkv:landmarks=fp8", {"`landmarks`", "\"fp8\"", "bf16|int8"}},
      {"shadowkv:landmarks=int8,sel=q2", {"`landmarks` is int8", "`sel=mean`"}},
      {"shadowkv:landmarks=int8,sel=bounds", {"`landmarks` is int8", "`sel=mean`"}},
      {"shadowkv:joint=4097", {"`joint`", "\"4097\"", "0..4096"}},
      {"snapkv", {"snapkv", "`budget`", "tokens"}},
      {"h2o", {"h2o", "`budget`", "tokens"}},
      {"streaming", {"streaming", "`budget`", "tokens"}},
      {"loki", {"loki", "`budget`", "tokens"}},
      {"quest:page=16", {"quest", "`budget`", "tokens"}},
      {"quest:budget=64,page=0", {"`page`", "\"0\"", "integer in 1.."}},
      {"snapkv:budget=64,page=16", {"snapkv has no key \"page\"", "budget"}},
      {"static", {"static", "`share`", "0..1"}},
      {"static:share=1.01", {"`share`", "\"1.01\"", "0..1"}},
      {"static:share=-0", {"`share`", "\"-0\"", "0..1"}},
      {"static:share=nan", {"`share`", "\"nan\"", "0..1"}},
      {"static:share=0.5,low=k8v8", {"`low` is k8v8", "`high` is k8v4", "narrower"}},
  };
  for (const Case& c : cases) {
    const auto policy = ParseKvPolicy(c.given);
    ASSERT_FALSE(policy.ok()) << c.given;
    EXPECT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
    const std::string message(policy.status().message());
    EXPECT_THAT(message, StartsWith("kv_policy: "));
    for (const std::string& part : c.named) {
      EXPECT_THAT(message, HasSubstr(part)) << c.given;
    }
  }
}

TEST(KvPolicyTest, LengthIsBounded) {
  const std::string longest = "diffkv:w=" + std::string(kMaxKvPolicyBytes - 10, '0') + "7";
  ASSERT_EQ(longest.size(), kMaxKvPolicyBytes);
  EXPECT_EQ(Parse(longest).CanonicalString(), "diffkv:w=7");
  const auto longer = ParseKvPolicy(longest + "7");
  ASSERT_FALSE(longer.ok());
  EXPECT_THAT(std::string(longer.status().message()), AllOf(HasSubstr("513"), HasSubstr("512")));
}

TEST(KvPolicyTest, MessageIsBoundedAndPrintableWhateverWasSent) {
  const std::string noise(400, '\x01');
  for (const std::string& text : {std::string(100000, '\x01'),
                                  noise,
                                  "diffkv:" + noise,
                                  "diffkv:w=" + noise,
                                  "shadowkv:budget=" + noise,
                                  "hidden+" + noise,
                                  "tier=" + noise,
                                  "diffkv:w=1,w=" + noise}) {
    const auto policy = ParseKvPolicy(text);
    ASSERT_FALSE(policy.ok());
    EXPECT_LT(policy.status().message().size(), 1024u);
    EXPECT_EQ(policy.status().message().find('\x01'), absl::string_view::npos);
  }
}

}  // namespace
}  // namespace baton::kv
