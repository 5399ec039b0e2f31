// Calibrations of workers: one of another model ends the start-up, and a hand-off whose sides
// would not encode and read alike is refused.
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "common/checkpoint/checkpoint.h"
#include "common/kv/calibration/calibration_file.h"
#include "common/kv/codec/kv_calibration.h"
#include "common/kv/codec/kv_policy.h"
#include "common/rpc/status_details.h"
#include "common/worker/worker_options.h"
#include "tests/integration/worker/worker_pair.h"
#include "tests/unit/checkpoint/temp_dir.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

class CalibrationTest : public testing::Test {
 protected:
  CalibrationTest() {
    const auto checkpoint =
        checkpoint::Checkpoint::Open(TinyOptions(engine::Role::kBoth).model_dir, {});
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    file_.model = {.fingerprint = (*checkpoint)->fingerprint(),
                   .layers = (*checkpoint)->config().num_kv_cache_layers()};
    for (kv::KvPolicyDefaults::Family& family : file_.calibration.defaults.families) {
      family.diffkv.alpha_high = 2.0f;
      family.diffkv.alpha_low = 0.0f;
    }
    // Above the few tokens of these prompts nothing would be left out of the budget.
    file_.calibration.defaults.of(kv::HiddenWire::kNone).shadowkv.outlier_chunks = 2;
    file_.calibration.defaults.of(kv::HiddenWire::kNone).shadowkv.local_chunks = 2;
  }

  // A worker's options with the file as it is now.
  worker::WorkerOptions Options(engine::Role role, const std::string& name) const {
    worker::WorkerOptions options = TinyOptions(role);
    options.kv_calibration = folder_.File(name);
    std::ofstream(options.kv_calibration) << kv::CalibrationToJson(file_);
    return options;
  }
  // A request with `policy` from a prefill worker to a decode worker.
  static Outcome Serve(const worker::WorkerOptions& prefill_options,
                       const worker::WorkerOptions& decode_options,
                       const std::string& policy) {
    const auto prefill = StartPrefill(prefill_options);
    const auto decode = StartDecode(decode_options);
    Request request = GreedyRequest("a", 200, 12);
    request.kv_policy = policy;
    return RunSplit(ChannelTo(prefill->worker()), ChannelTo(decode->worker()), request);
  }
  void SetFloor() {
    file_.calibration.diffkv_floor.assign(static_cast<size_t>(file_.model.layers),
                                          kv::KvFloor::kNone);
    file_.calibration.diffkv_floor.back() = kv::KvFloor::kHigh;
  }

  const TempDir folder_;
  kv::CalibrationFile file_;
};

TEST_F(CalibrationTest, BothSidesServeTheCalibratedDefaults) {
  SetFloor();
  const Outcome implied =
      Serve(Options(engine::Role::kPrefill, "p"), Options(engine::Role::kDecode, "d"), "diffkv");
  ASSERT_TRUE(implied.status.ok()) << implied.status;
  const Outcome written = Serve(Options(engine::Role::kPrefill, "p"),
                                Options(engine::Role::kDecode, "d"),
                                "diffkv:ah=2,al=0");
  ASSERT_TRUE(written.status.ok()) << written.status;
  EXPECT_EQ(implied.tokens, written.tokens);
  EXPECT_EQ(implied.usage.kv_resident_bytes(), written.usage.kv_resident_bytes());
}

TEST_F(CalibrationTest, FloorsOnOneSideAloneAreRefusedAtTheHandOff) {
  const worker::WorkerOptions decode = Options(engine::Role::kDecode, "d");
  SetFloor();
  const Outcome outcome = Serve(Options(engine::Role::kPrefill, "p"), decode, "diffkv");
  EXPECT_EQ(outcome.status.code(), absl::StatusCode::kFailedPrecondition) << outcome.status;
  EXPECT_EQ(rpc::ReasonOf(outcome.status), rpc::reason::kLayoutMismatch);
  EXPECT_THAT(std::string(outcome.status.message()), HasSubstr("calibration_digest"));
}

TEST_F(CalibrationTest, ACalibrationOnOneSideAloneIsRefusedForWhatItChangesAndNoMore) {
  const worker::WorkerOptions plain = TinyOptions(engine::Role::kPrefill);
  const worker::WorkerOptions decode = Options(engine::Role::kDecode, "d");
  const Outcome diffkv = Serve(plain, decode, "diffkv");
  EXPECT_EQ(diffkv.status.code(), absl::StatusCode::kFailedPrecondition) << diffkv.status;
  EXPECT_EQ(rpc::ReasonOf(diffkv.status), rpc::reason::kLayoutMismatch);
  EXPECT_TRUE(Serve(plain, decode, "dense").status.ok());
}

// Decode alone selects, so its weights are its own.
TEST_F(CalibrationTest, BudgetsOfOneSideAloneAreHarmless) {
  const worker::WorkerOptions prefill = Options(engine::Role::kPrefill, "p");
  auto& budget = file_.calibration.shadowkv_budget;
  budget.assign(static_cast<size_t>(file_.model.layers), 1.0f);
  budget.front() = 1.5f;
  budget.back() = 0.5f;
  const Outcome outcome = Serve(prefill, Options(engine::Role::kDecode, "d"), "shadowkv:rank=32");
  EXPECT_TRUE(outcome.status.ok()) << outcome.status;
}

TEST_F(CalibrationTest, AFileOfAnotherModelOrNoneEndsTheStartUpByName) {
  file_.model.fingerprint ^= 1;
  const worker::WorkerOptions other = Options(engine::Role::kDecode, "other.json");
  for (const auto& status : {decode::DecodeServer::Start(other).status(),
                             prefill::PrefillServer::Start(other).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_THAT(std::string(status.message()), HasSubstr("other.json"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("fingerprint"));
  }
  worker::WorkerOptions missing = other;
  missing.kv_calibration = folder_.File("nowhere.json");
  EXPECT_THAT(std::string(decode::DecodeServer::Start(missing).status().message()),
              HasSubstr("nowhere.json"));
}

}  // namespace
}  // namespace baton
