// The calibration file: what is written is read back, and everything else is refused by name.
#include "common/kv/calibration/calibration_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_replace.h"

#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/policy_params.h"

namespace baton::kv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr CalibratedModel kModel = {.fingerprint = 0x00c0ffee12345678, .layers = 3};

KvFormatPolicy Format(std::string_view text) { return *(*ParseKvPolicy(text)).format(); }

template <typename Params>
Params ParamsOf(std::string_view text) {
  return std::get<Params>(Format(text).resident);
}

// A file in which nothing has its default.
CalibrationFile FullFile() {
  CalibrationFile file;
  file.model = kModel;
  KvCalibration& calibration = file.calibration;
  for (KvPolicyDefaults::Family& family : calibration.defaults.families) {
    family.diffkv = ParamsOf<DiffKvPolicy>("diffkv:high=k4v4,ah=0.3,al=0.1,w=32,every=4");
    family.shadowkv = ParamsOf<ShadowKvPolicy>("shadowkv:rank=96,chunk=1,sel=q2,budget=0.09");
  }
  calibration.defaults.of(HiddenWire::kFp8).diffkv = ParamsOf<DiffKvPolicy>("diffkv:ah=2,al=0");
  calibration.defaults.of(HiddenWire::kBF16).shadowkv = ParamsOf<ShadowKvPolicy>("shadowkv:v=v2");
  calibration.tiers = {
      Format("diffkv:ah=0,al=0"), Format("hidden8+diffkv"), Format("shadowkv:budget=64")};
  calibration.automatic = {.exact_below_tokens = 77,
                           .choice = KvChoice::kTierHigh,
                           .under_pressure = KvChoice::kTierBalanced};
  calibration.diffkv_floor = {KvFloor::kHigh, KvFloor::kNone, KvFloor::kLow};
  calibration.shadowkv_budget = {1.7f, 0.1f, 1.2f};
  file.curve = {{.kv = "dense", .cases = 9, .correct = 8, .bytes_per_token = 6144.25},
                {.kv = "diffkv",
                 .cases = 9,
                 .correct = 7,
                 .lost = 2,
                 .gained = 1,
                 .bytes_per_token = 2000.0 / 3.0,
                 .bytes_share = 0.3,
                 .wire_share = 0.25,
                 .attended_share = 0.125}};
  file.made = {
      .command = "baton-lab calibrate \"--x\"", .rule = "r", .compute = "bf16", .cases = 9};
  return file;
}

// The text of a full file with `from`, which is in it, made `to`.
std::string Changed(std::string_view from, std::string_view to) {
  const std::string text = CalibrationToJson(FullFile());
  EXPECT_NE(text.find(from), std::string::npos) << from << " in\n" << text;
  return absl::StrReplaceAll(
      text,
      {{absl::string_view(from.data(), from.size()), absl::string_view(to.data(), to.size())}});
}

TEST(CalibrationFileTest, WhatIsWrittenIsReadBack) {
  for (const CalibrationFile& file : {FullFile(), CalibrationFile{.model = kModel}}) {
    const std::string text = CalibrationToJson(file);
    const auto read = ParseCalibration(text, kModel);
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << text;
    EXPECT_EQ(*read, file) << text;
    EXPECT_EQ(CalibrationToJson(*read), text);
  }
}

TEST(CalibrationFileTest, AHiddenFamilyThatIsMissingHasTheKeysOfItsFormat) {
  const auto file = ParseCalibration(
      R"({"version": 1, "model": {"fingerprint": "00c0ffee12345678", "kv_layers": 3},
          "families": {"diffkv": {"policy": "diffkv:ah=3"},
                       "hidden+diffkv": {"policy": "hidden+diffkv:ah=2"}}})");
  ASSERT_TRUE(file.ok()) << file.status();
  const KvPolicyDefaults& defaults = file->calibration.defaults;
  EXPECT_EQ(defaults.of(HiddenWire::kNone).diffkv.alpha_high, 3.0f);
  EXPECT_EQ(defaults.of(HiddenWire::kBF16).diffkv.alpha_high, 2.0f);
  EXPECT_EQ(defaults.of(HiddenWire::kFp8).diffkv.alpha_high, 3.0f);
  EXPECT_EQ(defaults.of(HiddenWire::kFp8).shadowkv, ShadowKvPolicy());
  EXPECT_FALSE(file->calibration.tiers.has_value());
}

TEST(CalibrationFileTest, AnotherModelIsRefusedWithBothFingerprints) {
  const std::string text = CalibrationToJson(FullFile());
  for (const CalibratedModel& other : {CalibratedModel{.fingerprint = 0xab, .layers = 3},
                                       CalibratedModel{kModel.fingerprint, 4}}) {
    const absl::Status status = ParseCalibration(text, other).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("00c0ffee12345678 and 3 KV layers"), HasSubstr("baton-lab")));
  }
}

TEST(CalibrationFileTest, AnotherVersionIsRefusedWhateverElseIsInTheFile) {
  const absl::Status status = ParseCalibration(R"({"version": 2, "new": {}})").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("version 2"), HasSubstr("reads version 1")));
}

TEST(CalibrationFileTest, RefusalsNameTheMember) {
  const std::vector<std::array<std::string, 3>> cases = {
      {R"("version": 1)", R"("version": "1")", "`version`"},
      {R"("version": 1)", R"("version": -1)", "`version`"},
      {R"("version": 1,)", R"("version": 1, "extra": 0,)", "unknown member `extra`"},
      {R"("version": 1,)", R"("version": 1, "version": 1,)", "`version` is given twice"},
      {R"("kv_layers": 3)", R"("kv_layers": 3, "kv_layers": 3)", "`kv_layers` is given twice"},
      {R"("kv_layers": 3)", R"("kv_layers": 0)", "`model.kv_layers`"},
      {R"("kv_layers": 3)", R"("kv_layers": 3.5)", "`model.kv_layers`"},
      {R"("kv_layers": 3)", R"("kv_layers": 18446744073709551615)", "`model.kv_layers`"},
      {R"("kv_layers": 3)", R"("kv_layers": 4)", "`families.diffkv.layer_floor` has 3 elements"},
      {R"("00c0ffee12345678")", R"("c0ffee12345678")", "`model.fingerprint`"},
      {R"("00c0ffee12345678")", R"("00C0FFEE12345678")", "`model.fingerprint`"},
      {R"("00c0ffee12345678")", R"("00c0ffee1234567x")", "`model.fingerprint`"},
      {R"("00c0ffee12345678")", "5", "`model.fingerprint`"},
      {R"("diffkv:high=k4v4)", R"("diffkv:hi=k4v4)", "`families.diffkv.policy`"},
      {R"("diffkv:high=k4v4)", R"("hidden+diffkv:high=k4v4)", "must be one of diffkv"},
      {R"("shadowkv:rank=96)", R"("diffkv:rank=96)", "`families.shadowkv.policy`"},
      {R"("none")", R"("medium")", "`families.diffkv.layer_floor` element 1"},
      {R"("none",)", "", "`families.diffkv.layer_floor` has 2 elements"},
      {R"("layer_floor": [)", R"("layer_floor": 7, "x": [)", "unknown member"},
      {R"("layer_budget": [)", R"("layer_budget": [1, )", "has 4 elements"},
      {"1.7000000476837158", "NaN", "malformed JSON"},
      {"1.7000000476837158", "1e999", "malformed JSON"},
      {"1.7000000476837158", "null", "`families.shadowkv.layer_budget` element 0"},
      {"1.7000000476837158", "-1.7", "`families.shadowkv.layer_budget` element 0"},
      {"1.7000000476837158", "65", "`families.shadowkv.layer_budget` element 0"},
      {"1.7000000476837158", "1.6", "has mean 0.9"},
      {R"("tiers": {)", R"("tiers": {"exact": "dense",)", "unknown member `tiers.exact`"},
      {R"("high": "diffkv)", R"("high": "tier=exact", "x": "diffkv)", "unknown member `tiers.x`"},
      {R"("balanced": "hidden8+diffkv)", R"("balanced": "int4)", "`tiers.balanced`"},
      {R"("under_pressure": "tier=balanced")", R"("under_pressure": "auto")", "`auto.under_"},
      {R"("policy": "tier=high")", R"("policy": "dense")", "`auto.policy`"},
      {R"("exact_below_tokens": 77)", R"("exact_below_tokens": -1)", "`auto.exact_below_tokens`"},
      {R"("correct": 7)", R"("correct": 10)", "`curve[1].correct`"},
      {"0.125", R"("0.125")", "`curve[1].attended_share`"},
      {R"("wire_share": 0.25)", R"("wire_share": -0.25)", "`curve[1].wire_share`"},
      {R"("compute": "bf16")", R"("compute": 1)", "`made.compute`"},
  };
  for (const auto& [from, to, named] : cases) {
    const absl::Status status = ParseCalibration(Changed(from, to)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << from << " -> " << to;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr("calibration: "), HasSubstr(named)))
        << from << " -> " << to;
  }
}

TEST(CalibrationFileTest, NoTruncationIsReadAsAFile) {
  const std::string text = CalibrationToJson(FullFile());
  // The last two bytes are the closing brace and the line break.
  for (size_t size = 0; size < text.size() - 1; ++size) {
    const absl::Status status = ParseCalibration(std::string_view(text).substr(0, size)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << size;
  }
}

TEST(CalibrationFileTest, FlippedBytesAreReadOrRefusedAndMessagesStayShortAndPrintable) {
  constexpr unsigned kSeed = 20250412;
  SCOPED_TRACE(testing::Message() << "seed " << kSeed);
  std::mt19937 random(kSeed);
  const std::string text = CalibrationToJson(FullFile());
  for (int i = 0; i < 4000; ++i) {
    std::string changed = text;
    changed[random() % changed.size()] = static_cast<char>(random());
    const auto file = ParseCalibration(changed);
    if (file.ok()) {
      EXPECT_EQ(*ParseCalibration(CalibrationToJson(*file)), *file);
      continue;
    }
    EXPECT_LT(file.status().message().size(), 2048u);
    for (const char c : file.status().message()) {
      EXPECT_TRUE(c >= ' ' && c <= '~') << file.status();
    }
  }
}

TEST(CalibrationFileTest, SizeAndDepthAreBounded) {
  EXPECT_EQ(ParseCalibration(std::string(kMaxCalibrationBytes + 1, ' ')).status().code(),
            absl::StatusCode::kInvalidArgument);
  const std::string deep = R"({"version": 1, "model": )" + std::string(1 << 20, '[');
  EXPECT_EQ(ParseCalibration(deep).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton::kv
