#include "services/router/workers/worker_set.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "spdlog/spdlog.h"

#include "common/rpc/channel.h"
#include "common/rpc/limits.h"
#include "common/rpc/tls.h"
#include "services/router/timer_queue.h"
#include "services/router/workers/worker.h"
#include "services/router/workers/worker_calls.h"

namespace baton::router {

WorkerSet::WorkerSet(rpc::TlsOptions tls,
                     std::shared_ptr<TimerQueue> timers,
                     std::shared_ptr<WorkerCalls> calls)
    : tls_(std::move(tls)), timers_(std::move(timers)), calls_(std::move(calls)) {}

WorkerSet::~WorkerSet() { Stop(); }

std::shared_ptr<Worker> WorkerSet::Make(WorkerKind kind, const std::string& address) {
  auto channel = rpc::MakeChannel(address, tls_, rpc::Exposure::kInternal);
  if (!channel.ok()) {
    spdlog::error("worker address={}: {}", address, std::string(channel.status().message()));
    return nullptr;
  }
  return std::make_shared<Worker>(
      ++last_id_, kind, address, *std::move(channel), timers_, calls_, events_);
}

void WorkerSet::SetAddresses(WorkerKind kind, const std::vector<std::string>& addresses) {
  std::vector<std::shared_ptr<Worker>> added;
  std::vector<std::shared_ptr<Worker>> removed;
  {
    absl::MutexLock lock(&mutex_);
    Workers& workers = workers_[kind];
    for (auto it = workers.begin(); it != workers.end();) {
      if (std::ranges::find(addresses, it->first) == addresses.end()) {
        removed.push_back(it->second);
        it = workers.erase(it);
      } else {
        ++it;
      }
    }
    for (const std::string& address : addresses) {
      if (workers.contains(address)) {
        continue;
      }
      if (auto worker = Make(kind, address)) {
        added.push_back(worker);
        workers.emplace(address, std::move(worker));
      }
    }
  }
  for (const auto& worker : removed) {
    worker->Stop();
  }
  for (const auto& worker : added) {
    worker->Start();
  }
  if (!removed.empty()) {
    events_.on_change();
  }
}

std::vector<std::shared_ptr<Worker>> WorkerSet::List(WorkerKind kind) const {
  absl::MutexLock lock(&mutex_);
  std::vector<std::shared_ptr<Worker>> list;
  if (const auto found = workers_.find(kind); found != workers_.end()) {
    for (const auto& [address, worker] : found->second) {
      list.push_back(worker);
    }
  }
  return list;
}

WorkerLimits WorkerSet::limits() const {
  WorkerLimits limits;
  std::set<std::string> made;
  std::set<std::string> held;
  for (const WorkerKind kind : {WorkerKind::kPrefill, WorkerKind::kDecode}) {
    for (const auto& worker : List(kind)) {
      const auto info = worker->info();
      if (!info.has_value()) {
        continue;
      }
      const auto& formats = info->kv_policies();
      if (kind == WorkerKind::kDecode) {
        held.insert(formats.begin(), formats.end());
      }
      if (kind == WorkerKind::kPrefill || info->role() == worker::v1::ROLE_BOTH) {
        made.insert(formats.begin(), formats.end());
      }
      if (info->max_sequence_tokens() > 0) {
        limits.max_sequence_tokens =
            std::min(limits.max_sequence_tokens.value_or(info->max_sequence_tokens()),
                     info->max_sequence_tokens());
      }
      if (kind == WorkerKind::kDecode && info->kv_pool_tokens() > 0) {
        limits.max_pool_tokens =
            std::max(limits.max_pool_tokens.value_or(0), uint64_t{info->kv_pool_tokens()});
      }
    }
  }
  std::set_intersection(
      made.begin(), made.end(), held.begin(), held.end(), std::back_inserter(limits.kv_formats));
  return limits;
}

void WorkerSet::Stop() {
  std::vector<std::shared_ptr<Worker>> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [kind, workers] : workers_) {
      for (const auto& [address, worker] : workers) {
        all.push_back(worker);
      }
    }
  }
  for (const auto& worker : all) {
    worker->Stop();
  }
}

}  // namespace baton::router
