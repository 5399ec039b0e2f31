#include "common/engine/kv_choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <variant>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/engine/request_checks.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"
#include "kernels/core/buffer.h"
#include "kernels/core/thread_pool.h"
#include "kernels/reference/reference_ops.h"

namespace baton::engine {
namespace {

using ::testing::HasSubstr;

class KvChoiceTest : public testing::Test {
 protected:
  // Of a model of two stored layers; fewer full ones: a SwiftKV model.
  std::unique_ptr<kv::CodecSet> MakeCodecs(const kv::CodecPools& pools,
                                           int32_t head_dim = 64,
                                           int32_t full_layers = 2,
                                           const kv::KvCalibration* calibration = nullptr) {
    kv::CodecContext context;
    if (calibration != nullptr) {
      context.calibration = std::make_shared<const kv::KvCalibration>(*calibration);
    }
    context.ops = &kernels::ReferenceOps();
    context.exec = {.pool = &threads_, .workspace = &workspace_};
    context.dimensions = {.layers = 2, .kv_heads = 2, .head_dim = head_dim};
    context.full_layers = full_layers;
    context.hidden_size = 256;
    context.heads = 4;
    context.rope = {.inverse_frequencies = std::vector<float>(static_cast<size_t>(head_dim) / 2),
                    .max_positions = 4096};
    auto codecs = kv::CodecSet::Create(std::move(context), pools);
    EXPECT_TRUE(codecs.ok()) << codecs.status();
    return *std::move(codecs);
  }
  // What `codecs` answer for a policy; the message names the policy.
  static absl::StatusCode Refuse(const kv::CodecSet& codecs, const std::string& kv_policy) {
    const absl::Status status = ChooseKv(codecs, kv_policy, 1000).status();
    if (!status.ok()) {
      EXPECT_THAT(std::string(status.message()), HasSubstr("kv_policy: "));
      EXPECT_THAT(std::string(status.message()), HasSubstr(kv_policy));
    }
    return status.code();
  }

  kernels::ThreadPool threads_{1};
  kernels::Buffer workspace_;
  const std::unique_ptr<kv::CodecSet> none_ = MakeCodecs({});
  const std::unique_ptr<kv::CodecSet> all_ =
      MakeCodecs({.diffkv_bytes = 1 << 20, .shadowkv_bytes = 1 << 20});
};

TEST_F(KvChoiceTest, DenseIsServedByEveryEngine) {
  const absl::StatusOr<KvChoice> choice = ChooseKv(*none_, "dense", 1);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->encoded, nullptr);
  EXPECT_EQ(choice->canonical(), "dense");
}

TEST_F(KvChoiceTest, PoliciesThatThisEngineCannotDoAreFailedPreconditions) {
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  EXPECT_EQ(Refuse(*none_, "diffkv:w=32"), kPrecondition);
  EXPECT_EQ(Refuse(*none_, "shadowkv"), kPrecondition);
  for (const kv::CodecSet* codecs : {none_.get(), all_.get()}) {
    EXPECT_EQ(Refuse(*codecs, "fp8"), kPrecondition);
  }
  const auto swiftkv = MakeCodecs({.diffkv_bytes = 1 << 20}, 64, /*full_layers=*/1);
  EXPECT_EQ(Refuse(*swiftkv, "hidden+dense"), kPrecondition);
}

TEST_F(KvChoiceTest, HiddenStatesNeedASwiftKvModel) {
  EXPECT_EQ(Refuse(*all_, "hidden+dense"), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Refuse(*all_, "hidden8+diffkv"), absl::StatusCode::kInvalidArgument);
  const auto swiftkv =
      MakeCodecs({.diffkv_bytes = 1 << 20, .hidden_bytes = 1 << 20}, 64, /*full_layers=*/1);
  const absl::StatusOr<KvChoice> choice = ChooseKv(*swiftkv, "hidden8+diffkv:al=0", 1000);
  ASSERT_TRUE(choice.ok()) << choice.status();
  EXPECT_EQ(choice->hidden, swiftkv->hidden());
  EXPECT_EQ(choice->encoded, swiftkv->Find(kv::KvFormatId::kDiffKv));
  EXPECT_EQ(choice->canonical(), "hidden8+diffkv:al=0");
}

TEST_F(KvChoiceTest, TiersAndAutoBecomePolicies) {
  const auto canonical = [](const kv::CodecSet& codecs,
                            const char* policy,
                            int64_t prompt_tokens,
                            double free_share = 1.0) {
    const auto choice =
        ChooseKv(codecs, policy, prompt_tokens, KvPressure{.free_share = free_share});
    EXPECT_TRUE(choice.ok()) << choice.status();
    return choice->canonical();
  };
  EXPECT_EQ(canonical(*all_, "tier=exact", 5000), "dense");
  EXPECT_EQ(canonical(*all_, "tier=high", 5000), "diffkv:ah=0,al=0");
  EXPECT_EQ(canonical(*all_, "tier=balanced", 5000), "diffkv:al=0");
  EXPECT_EQ(canonical(*all_, "auto", 100), "dense");
  EXPECT_EQ(canonical(*all_, "auto", 5000), "diffkv:al=0");
  EXPECT_EQ(canonical(*all_, "auto", 5000, 0.1), canonical(*all_, "tier=economy", 5000));
  EXPECT_EQ(canonical(*all_, "auto", 100, 0.1), "dense");
}

TEST_F(KvChoiceTest, ATierMovesOnlyToHigherQuality) {
  for (const char* policy : {"tier=high", "tier=balanced", "tier=economy", "auto"}) {
    const absl::StatusOr<KvChoice> choice = ChooseKv(*none_, policy, 5000);
    ASSERT_TRUE(choice.ok()) << policy << choice.status();
    EXPECT_EQ(choice->canonical(), "dense") << policy;
  }
}

class CalibratedChoiceTest : public KvChoiceTest {
 protected:
  static kv::KvFormatPolicy Format(const char* text) { return *kv::ParseKvPolicy(text)->format(); }
  static kv::KvCalibration Calibration() {
    kv::KvCalibration calibration;
    kv::KvPolicyDefaults::Family& family = calibration.defaults.of(kv::HiddenWire::kNone);
    family.diffkv =
        std::get<kv::DiffKvPolicy>(Format("diffkv:high=k4v4,ah=0.5,al=0,w=32").resident);
    calibration.tiers = {Format("diffkv:ah=0,al=0"), Format("fp8"), Format("diffkv:ah=4,al=0")};
    calibration.automatic = {.exact_below_tokens = 50,
                             .choice = kv::KvChoice::kTierHigh,
                             .under_pressure = kv::KvChoice::kTierEconomy};
    return calibration;
  }
  std::string Canonical(const std::string& policy,
                        int64_t prompt_tokens = 5000,
                        double free_share = 1.0) {
    const auto choice =
        ChooseKv(*calibrated_, policy, prompt_tokens, KvPressure{.free_share = free_share});
    return choice.ok() ? choice->canonical() : choice.status().ToString();
  }

  const kv::KvCalibration calibration_ = Calibration();
  const std::unique_ptr<kv::CodecSet> calibrated_ =
      MakeCodecs({.diffkv_bytes = 1 << 20}, 64, 2, &calibration_);
  const std::string rest_ = ",score=lastw,base=N,policy=release,";
};

TEST_F(CalibratedChoiceTest, KeysLeftOutAreCalibratedAndEveryKeyIsSpelled) {
  EXPECT_EQ(Canonical("diffkv"),
            "diffkv:high=k4v4,low=k4v2,ah=0.5,al=0" + rest_ + "w=32,sinks=0,every=1");
  EXPECT_EQ(Canonical("diffkv:ah=1,every=2"),
            "diffkv:high=k4v4,low=k4v2,ah=1,al=0" + rest_ + "w=32,sinks=0,every=2");
  EXPECT_EQ(Canonical("dense"), "dense");
}

// Prefill is told what decode came to.
TEST_F(CalibratedChoiceTest, WhatIsSpelledComesToItselfWithAnyCalibration) {
  const std::string spelled = Canonical("diffkv:w=16");
  EXPECT_EQ(Canonical(spelled), spelled);
  const auto uncalibrated = ChooseKv(*all_, spelled, 5000);
  ASSERT_TRUE(uncalibrated.ok());
  EXPECT_EQ(uncalibrated->policy, ChooseKv(*calibrated_, spelled, 5000)->policy);
}

TEST_F(CalibratedChoiceTest, TiersAndAutoAreThoseOfTheCalibration) {
  const auto with = [&](const char* ah) {
    return absl::StrCat(
        "diffkv:high=k8v4,low=k4v2,ah=", ah, ",al=0", rest_, "w=64,sinks=0,every=1");
  };
  EXPECT_EQ(Canonical("tier=exact"), "dense");
  EXPECT_EQ(Canonical("tier=high"), with("0"));
  // fp8 is not served here.
  EXPECT_EQ(Canonical("tier=balanced"), with("0"));
  EXPECT_EQ(Canonical("tier=economy"), with("4"));
  EXPECT_EQ(Canonical("auto", 49), "dense");
  EXPECT_EQ(Canonical("auto", 50), with("0"));
  EXPECT_EQ(Canonical("auto", 50, 0.1), with("4"));
}

TEST_F(KvChoiceTest, BaselinesAndNonsenseAreBadArguments) {
  for (const kv::CodecSet* codecs : {none_.get(), all_.get()}) {
    EXPECT_EQ(Refuse(*codecs, "snapkv:budget=64"), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Refuse(*codecs, "int4"), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Refuse(*codecs, "nonsense"), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Refuse(*codecs, ""), absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(KvChoiceTest, AFormatWithAPoolIsChosenWithItsParameters) {
  const absl::StatusOr<KvChoice> diffkv = ChooseKv(*all_, "diffkv:sinks=4,w=32", 1000);
  ASSERT_TRUE(diffkv.ok()) << diffkv.status();
  EXPECT_EQ(diffkv->encoded, all_->Find(kv::KvFormatId::kDiffKv));
  EXPECT_EQ(diffkv->canonical(), "diffkv:w=32,sinks=4");
  const absl::StatusOr<KvChoice> shadowkv = ChooseKv(*all_, "shadowkv:rank=32", 1000);
  ASSERT_TRUE(shadowkv.ok()) << shadowkv.status();
  EXPECT_EQ(shadowkv->encoded, all_->Find(kv::KvFormatId::kShadowKv));
  EXPECT_EQ(shadowkv->canonical(), "shadowkv:rank=32");
}

TEST_F(KvChoiceTest, APoolWithoutALayoutForTheHeadsServesNothing) {
  const auto codecs =
      MakeCodecs({.diffkv_bytes = 1 << 20, .shadowkv_bytes = 1 << 20}, /*head_dim=*/4);
  EXPECT_EQ(Refuse(*codecs, "diffkv"), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Refuse(*codecs, "shadowkv"), absl::StatusCode::kFailedPrecondition);
}

// The default: 48 outlier chunks, 1 sink chunk and 8 local ones of 8 tokens, 1/16 of the prompt.
TEST_F(KvChoiceTest, APromptThatShadowKvWouldKeepWholeIsDense) {
  for (const int64_t tokens : {1, 8, 64, 456, 480}) {
    const absl::StatusOr<KvChoice> choice = ChooseKv(*all_, "shadowkv", tokens);
    ASSERT_TRUE(choice.ok()) << choice.status();
    EXPECT_EQ(choice->canonical(), "dense") << tokens;
  }
  EXPECT_EQ(ChooseKv(*all_, "shadowkv", 500)->canonical(), "shadowkv");
}

// Whoever asks: the checks of requests come behind the choice and know nothing of policies.
TEST_F(KvChoiceTest, ReservationsAreCheckedWhateverTheirPolicy) {
  ReserveRequest request;
  request.request_id = "x";
  request.prompt_tokens = 1;
  request.sampling.max_tokens = 1;
  request.kv_policy = "nonsense";
  EXPECT_TRUE(CheckReserveRequest({.role = Role::kDecode, .vocab_size = 8}, request).ok());
  request.prompt_tokens = 0;
  EXPECT_EQ(CheckReserveRequest({.role = Role::kDecode, .vocab_size = 8}, request).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::engine
