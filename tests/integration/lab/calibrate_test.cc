// baton-lab calibrate: a file that eval and workers load, that is bound to its model, and that an
// interrupted run comes to as well.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <ios>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_policy.h"
#include "tests/integration/lab/lab_run.h"
#include "tests/support/child_process.h"
#include "tests/support/local_stack.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton::lab {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kModels = std::string(BATON_SOURCE_DIR) + "/tests/data/models/";
constexpr char kModel[] = "tiny-llama-needle";
constexpr char kOtherModel[] = "tiny-llama-needle-swiftkv-l6";
constexpr int kCases = 2;

std::string ReadText(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

LabRun RunOnCopies(const std::string& command,
                   const std::string& model,
                   const std::string& out,
                   const std::vector<std::string>& flags) {
  std::vector<std::string> arguments = {command,
                                        absl::StrCat("--model=", kModels, model),
                                        absl::StrCat("--cases=", kModels, "eval/copy.jsonl"),
                                        absl::StrCat("--limit=", kCases),
                                        "--threads=1",
                                        "--out=" + out};
  arguments.insert(arguments.end(), flags.begin(), flags.end());
  return RunLab(arguments);
}

// Starts a worker with the file and waits until it serves or has ended; its log.
std::string StartWorker(const char* binary,
                        const std::string& model,
                        const std::string& calibration,
                        const TempDir& folder) {
  const std::string log = folder.File(absl::StrCat(binary, ".log"));
  const std::string ports = folder.File(absl::StrCat(binary, ".ports"));
  auto process = testing::ChildProcess::Start({testing::BinaryPath(binary),
                                               absl::StrCat("--model=", kModels, model),
                                               "--kv_calibration=" + calibration,
                                               "--kv_pool_mib=16",
                                               "--port_file=" + ports},
                                              log);
  EXPECT_TRUE(process.ok()) << process.status();
  for (int i = 0; i < 600 && process->running() && !fs::exists(ports); ++i) {
    absl::SleepFor(absl::Milliseconds(100));
  }
  const bool served = fs::exists(ports);
  return (served ? "served\n" : "ended\n") + ReadText(log);
}

// One calibration for all tests: they only read it.
class CalibrateTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    shared_folder = new TempDir;
    shared_run = new LabRun(RunOnCopies("calibrate", kModel, File(), {}));
  }
  static void TearDownTestSuite() {
    delete shared_run;
    delete shared_folder;
  }
  void SetUp() override { ASSERT_EQ(shared_run->exit_code, 0) << shared_run->errors; }

  static std::string File() { return shared_folder->File("calibration.json"); }
  static std::string RowsFile() {
    for (const fs::directory_entry& entry : fs::directory_iterator(shared_folder->path())) {
      if (entry.path().string().ends_with(".rows.jsonl")) {
        return entry.path().string();
      }
    }
    return "";
  }

  static TempDir* shared_folder;
  static LabRun* shared_run;
};
TempDir* CalibrateTest::shared_folder = nullptr;
LabRun* CalibrateTest::shared_run = nullptr;

TEST_F(CalibrateTest, WritesAFileThatSaysWhatWasMeasuredAndAPicture) {
  const auto file = kv::ParseCalibration(ReadText(File()));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_GT(file->curve.size(), 40u);
  EXPECT_EQ(file->curve.front().kv, "dense");
  for (const kv::CalibrationPoint& point : file->curve) {
    EXPECT_EQ(point.cases, kCases) << point.kv;
    EXPECT_GT(point.bytes_per_token, 0.0) << point.kv;
  }
  EXPECT_TRUE(file->calibration.tiers.has_value());
  EXPECT_EQ(file->made.cases, kCases);
  EXPECT_THAT(file->made.command, StartsWith("baton-lab calibrate --model tiny-llama-needle "));
  EXPECT_THAT(ReadText(shared_folder->File("calibration.svg")), HasSubstr("</svg>"));
  EXPECT_THAT(shared_run->errors, HasSubstr("too few"));
  EXPECT_THAT(shared_run->errors, HasSubstr("diffkv 3/3"));
  EXPECT_THAT(shared_run->errors, HasSubstr("shadowkv 4/4"));
}

TEST_F(CalibrateTest, AnInterruptedRunGoesOnToTheSameFile) {
  const std::string expected = ReadText(File());
  const std::string rows = ReadText(RowsFile());
  const TempDir folder;
  const std::string out = folder.File("calibration.json");
  const std::string copy = folder.File(fs::path(RowsFile()).filename().string());
  // Cut in the middle of a line.
  std::ofstream(copy, std::ios::binary) << rows.substr(0, rows.size() * 2 / 3);
  const LabRun resumed = RunOnCopies("calibrate", kModel, out, {"--resume"});
  ASSERT_EQ(resumed.exit_code, 0) << resumed.errors;
  EXPECT_EQ(ReadText(out), expected);
  EXPECT_EQ(ReadRows(copy).size(), ReadRows(RowsFile()).size());
}

TEST_F(CalibrateTest, EvalTakesItsDefaultsAndSpellsThemInEveryRow) {
  const auto file = kv::ParseCalibration(ReadText(File()));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string chosen =
      kv::KvFormatPolicy{.resident = file->calibration.defaults.of(kv::HiddenWire::kNone).diffkv}
          .CanonicalString(kv::KvSpelling::kExplicit);
  const std::string flag = "--kv_calibration=" + File();
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--role=both"}, {"--role=split"}, {"--table"}}) {
    std::vector<std::string> all = flags;
    all.insert(all.end(), {flag, "--kv=diffkv"});
    const LabRun eval = RunOnCopies("eval", kModel, shared_folder->File("rows"), all);
    ASSERT_EQ(eval.exit_code, 0) << eval.errors;
    const auto rows = ReadRows(shared_folder->File("rows"));
    ASSERT_EQ(rows.size(), static_cast<size_t>(kCases));
    for (const nlohmann::json& row : rows) {
      EXPECT_EQ(row.at("kv"), chosen) << flags.front();
    }
  }
}

TEST_F(CalibrateTest, WorkersLoadItForItsModelAndRefuseItForAnother) {
  for (const char* binary : {"baton-prefill", "baton-decode"}) {
    EXPECT_THAT(StartWorker(binary, kModel, File(), *shared_folder), StartsWith("served"));
    fs::remove(shared_folder->File(absl::StrCat(binary, ".ports")));
    const std::string refused = StartWorker(binary, kOtherModel, File(), *shared_folder);
    EXPECT_THAT(refused, StartsWith("ended"));
    EXPECT_THAT(refused, HasSubstr("--kv_calibration"));
    EXPECT_THAT(refused, HasSubstr("calibration: made for a model with fingerprint"));
  }
}

TEST_F(CalibrateTest, EvalRefusesItForAnotherModelAndLeavesTheRowsAlone) {
  const TempDir folder;
  folder.Write("rows", "kept");
  const LabRun eval = RunOnCopies("eval",
                                  kOtherModel,
                                  folder.File("rows"),
                                  {"--table", "--kv=diffkv", "--kv_calibration=" + File()});
  EXPECT_NE(eval.exit_code, 0);
  EXPECT_THAT(eval.errors, HasSubstr("calibration: made for a model with fingerprint"));
  EXPECT_EQ(ReadText(folder.File("rows")), "kept");
}

TEST(CalibrateHiddenTest, Hidden8HasTiersOfItsOwnWithinTheBytesItMaySend) {
  const TempDir folder;
  const std::string out = folder.File("calibration.json");
  const LabRun run = RunOnCopies("calibrate",
                                 kOtherModel,
                                 out,
                                 {"--families=hidden8+diffkv", "--hidden8_diffkv_max_bytes=0.25"});
  ASSERT_EQ(run.exit_code, 0) << run.errors;
  const auto file = kv::ParseCalibration(ReadText(out));
  ASSERT_TRUE(file.ok()) << file.status();
  const std::string chosen =
      kv::KvFormatPolicy{.hidden = kv::HiddenWire::kFp8,
                         .resident = file->calibration.defaults.of(kv::HiddenWire::kFp8).diffkv}
          .CanonicalString(kv::KvSpelling::kExplicit);
  const auto point = std::ranges::find(file->curve, chosen, &kv::CalibrationPoint::kv);
  ASSERT_NE(point, file->curve.end()) << chosen;
  EXPECT_LE(point->wire_share, 0.25);
  EXPECT_GT(point->bytes_share, *point->wire_share) << "hidden states are smaller than pages";
  for (const kv::KvFormatPolicy& tier : *file->calibration.tiers) {
    EXPECT_EQ(tier.hidden, kv::HiddenWire::kNone);
  }
}

TEST(ShippedCalibrationTest, EveryModelLoadsItsOwnAndTakesItsDefaults) {
  for (const std::string model : {"tiny-llama-needle",
                                  "tiny-llama-needle-swiftkv-l6",
                                  "tiny-llama-needle-swiftkv-l6-across2"}) {
    const std::string path =
        absl::StrCat(BATON_SOURCE_DIR, "/tests/data/calibration/", model, ".json");
    const auto file = kv::ParseCalibration(ReadText(path));
    ASSERT_TRUE(file.ok()) << file.status();
    const TempDir folder;
    const LabRun eval = RunOnCopies(
        "eval", model, folder.File("rows"), {"--table", "--kv=diffkv", "--kv_calibration=" + path});
    ASSERT_EQ(eval.exit_code, 0) << eval.errors;
    const std::string chosen =
        kv::KvFormatPolicy{.resident = file->calibration.defaults.of(kv::HiddenWire::kNone).diffkv}
            .CanonicalString(kv::KvSpelling::kExplicit);
    EXPECT_EQ(ReadRows(folder.File("rows")).front().at("kv"), chosen);
  }
}

TEST(CalibrateFlagsTest, WrongFlagsAreNamed) {
  const TempDir folder;
  const std::string out = folder.File("out");
  EXPECT_THAT(RunOnCopies("calibrate", kModel, out, {"--max_loss=1.5"}).errors,
              HasSubstr("max_loss"));
  EXPECT_THAT(RunOnCopies("calibrate", kModel, out, {"--families=fp8"}).errors,
              HasSubstr("families"));
  EXPECT_THAT(RunOnCopies("calibrate", kModel, out, {"--families="}).errors, HasSubstr("families"));
  EXPECT_THAT(RunOnCopies("calibrate", kModel, out, {"--families=diffkv,hidden8+diffkv"}).errors,
              HasSubstr("hidden8+diffkv needs a SwiftKV model"));
  EXPECT_THAT(RunOnCopies("calibrate", kModel, out, {"--kv_calibration=x"}).errors,
              HasSubstr("kv_calibration"));
  EXPECT_FALSE(fs::exists(out));
}

}  // namespace
}  // namespace baton::lab
