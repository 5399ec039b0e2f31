#include "services/router/status/worker_report.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"

#include "services/router/workers/worker.h"

namespace baton::router {
namespace {

using nlohmann::ordered_json;

WorkerView Ready(WorkerKind kind, std::string address) {
  WorkerView view;
  view.kind = kind;
  view.address = std::move(address);
  view.state = WorkerState::kReady;
  view.info.emplace();
  view.info->set_role(kind == WorkerKind::kPrefill ? worker::v1::ROLE_PREFILL
                                                   : worker::v1::ROLE_DECODE);
  view.info->set_incarnation(0xfedcba9876543210);
  view.report_age = absl::Milliseconds(50);
  return view;
}

TEST(WorkerReportTest, SaysWhatAWorkerIsAndHowLoaded) {
  WorkerView view = Ready(WorkerKind::kDecode, "decode-0:8000");
  view.info->set_model_name("needle");
  view.info->add_transports("grpc");
  view.loads.set_waiting_requests(3);
  view.loads.set_pages_total(100);
  view.loads.set_pages_free(60);
  view.loads.set_pages_reserved(10);
  const ordered_json report = WorkerReport({view});
  EXPECT_EQ(report["total"], 1);
  EXPECT_EQ(report["ready"], 1);
  const ordered_json& worker = report["listed"][0];
  EXPECT_EQ(worker["address"], "decode-0:8000");
  EXPECT_EQ(worker["kind"], "decode");
  EXPECT_EQ(worker["state"], "ready");
  EXPECT_EQ(worker["model"], "needle");
  EXPECT_EQ(worker["epoch"], "fedcba9876543210");
  EXPECT_EQ(worker["waiting_requests"], 3);
  EXPECT_EQ(worker["pages"], ordered_json({{"total", 100}, {"free", 60}, {"reserved", 10}}));
}

TEST(WorkerReportTest, WorkerThatNeverAnsweredHasAnAddressAndAState) {
  WorkerView view;
  view.address = "prefill-0:8000";
  view.report_age = absl::InfiniteDuration();
  const ordered_json report = WorkerReport({view});
  EXPECT_EQ(report["ready"], 0);
  EXPECT_EQ(report["listed"][0],
            ordered_json({{"address", "prefill-0:8000"},
                          {"kind", "prefill"},
                          {"state", "connecting"},
                          {"full", false}}));
}

// A worker may say anything of itself, and there may be any number of them.
TEST(WorkerReportTest, IsBoundedWhateverWorkersSay) {
  WorkerView view = Ready(WorkerKind::kPrefill, std::string(10000, 'a'));
  view.info->set_model_name(std::string(10000, '"'));
  for (int i = 0; i < 20; ++i) {
    view.info->add_kv_policies(std::string(1 << 10, '\n'));
  }
  const ordered_json report = WorkerReport(std::vector<WorkerView>(1000, view));
  EXPECT_EQ(report["total"], 1000);
  EXPECT_EQ(report["listed"].size(), kMaxListedWorkers);
  EXPECT_LT(report.dump().size(), size_t{2} << 20);
}

TEST(WorkerReportTest, EveryStateHasAName) {
  std::vector<WorkerView> views;
  for (const WorkerState state : {WorkerState::kConnecting,
                                  WorkerState::kWrongRole,
                                  WorkerState::kDraining,
                                  WorkerState::kNotReady,
                                  WorkerState::kSilent,
                                  WorkerState::kSuspect,
                                  WorkerState::kReady}) {
    views.push_back(Ready(WorkerKind::kPrefill, "a:1"));
    views.back().state = state;
  }
  std::vector<std::string> names;
  const ordered_json report = WorkerReport(views);
  for (const ordered_json& worker : report["listed"]) {
    names.push_back(worker["state"]);
  }
  EXPECT_EQ(
      names,
      (std::vector<std::string>{
          "connecting", "wrong_role", "draining", "not_ready", "silent", "suspect", "ready"}));
}

}  // namespace
}  // namespace baton::router
