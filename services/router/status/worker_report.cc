#include "services/router/status/worker_report.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "nlohmann/json.hpp"

#include "proto/baton/worker/v1/control.pb.h"
#include "services/router/workers/worker.h"

namespace baton::router {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxTextBytes = 100;
constexpr int kMaxNames = 8;

std::string_view StateName(WorkerState state) {
  switch (state) {
    case WorkerState::kConnecting:
      return "connecting";
    case WorkerState::kWrongRole:
      return "wrong_role";
    case WorkerState::kDraining:
      return "draining";
    case WorkerState::kNotReady:
      return "not_ready";
    case WorkerState::kSilent:
      return "silent";
    case WorkerState::kSuspect:
      return "suspect";
    case WorkerState::kReady:
      return "ready";
  }
  return "unknown";
}

std::string_view RoleName(worker::v1::Role role) {
  switch (role) {
    case worker::v1::ROLE_PREFILL:
      return "prefill";
    case worker::v1::ROLE_DECODE:
      return "decode";
    case worker::v1::ROLE_BOTH:
      return "both";
    default:
      return "unknown";
  }
}

std::string Cut(std::string_view text) { return std::string(text.substr(0, kMaxTextBytes)); }

ordered_json Names(const google::protobuf::RepeatedPtrField<std::string>& names) {
  ordered_json list = ordered_json::array();
  for (int i = 0; i < std::min(names.size(), kMaxNames); ++i) {
    list.push_back(Cut(names[i]));
  }
  return list;
}

void AddInfo(const worker::v1::ServerInfo& info, ordered_json& worker) {
  worker["role"] = RoleName(info.role());
  worker["model"] = Cut(info.model_name());
  worker["version"] = Cut(info.version());
  // As text: a JSON number does not hold 64 bits.
  worker["epoch"] = absl::StrFormat("%016x", info.incarnation());
  worker["kv_formats"] = Names(info.kv_policies());
  worker["transports"] = Names(info.transports());
  worker["kv_pool_tokens"] = info.kv_pool_tokens();
  worker["max_sequence_tokens"] = info.max_sequence_tokens();
}

ordered_json OneWorker(const WorkerView& view) {
  ordered_json worker = {
      {"address", Cut(view.address)},
      {"kind", view.kind == WorkerKind::kPrefill ? "prefill" : "decode"},
      {"state", StateName(view.state)},
      {"full", view.full},
  };
  if (view.info.has_value()) {
    AddInfo(*view.info, worker);
  }
  if (view.report_age != absl::InfiniteDuration()) {
    const worker::v1::Loads& loads = view.loads;
    worker["report_age_seconds"] = absl::ToDoubleSeconds(view.report_age);
    worker["waiting_requests"] = loads.waiting_requests();
    worker["waiting_tokens"] = loads.waiting_tokens();
    worker["running_sequences"] = loads.running_sequences();
    worker["reservations"] = loads.reservations();
    worker["free_slots"] = loads.free_slots();
    worker["pages"] = {{"total", loads.pages_total()},
                       {"free", loads.pages_free()},
                       {"reserved", loads.pages_reserved()}};
  }
  return worker;
}

}  // namespace

ordered_json WorkerReport(const std::vector<WorkerView>& workers) {
  ordered_json listed = ordered_json::array();
  for (size_t i = 0; i < std::min(workers.size(), kMaxListedWorkers); ++i) {
    listed.push_back(OneWorker(workers[i]));
  }
  const auto ready = std::ranges::count(workers, WorkerState::kReady, &WorkerView::state);
  return {{"total", workers.size()}, {"ready", ready}, {"listed", std::move(listed)}};
}

}  // namespace baton::router
