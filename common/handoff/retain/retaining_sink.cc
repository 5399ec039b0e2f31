#include "common/handoff/retain/retaining_sink.h"

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"

#include "common/base/pieces.h"
#include "common/engine/kv_sink.h"
#include "common/engine/request.h"
#include "common/handoff/retain/retained_kv.h"
#include "common/handoff/retain/retention.h"

namespace baton::handoff {
namespace {

// Calls back when copy and transfer have both ended, with what the transfer came to.
class BothEnded {
 public:
  using Done = std::function<void(absl::Status, int64_t)>;

  explicit BothEnded(Done done) : done_(std::move(done)) {}

  void TransferEnded(absl::Status status, int64_t wire_bytes) {
    status_ = std::move(status);
    wire_bytes_ = wire_bytes;
    End();
  }
  void CopyEnded() { End(); }

 private:
  void End() {
    if (open_.fetch_sub(1) == 1) {
      done_(std::move(status_), wire_bytes_);
    }
  }

  const Done done_;
  absl::Status status_;
  int64_t wire_bytes_ = 0;
  std::atomic<int> open_ = 2;
};

}  // namespace

RetainingSink::RetainingSink(Retention* retention,
                             std::shared_ptr<RetainedKv> entry,
                             std::unique_ptr<engine::KvSink> sink)
    : retention_(*retention), entry_(std::move(entry)), sink_(std::move(sink)) {}

RetainingSink::~RetainingSink() {
  if (!ended_) {
    retention_.store().Drop(*entry_);
  }
}

void RetainingSink::LayersReady(engine::ReadyKv ready) {
  retention_.Run([store = &retention_.store(), entry = entry_, ready] {
    if (store->Charge(*entry, static_cast<int64_t>(BytesOf(ready.memory)))) {
      if (absl::StatusOr<RetainedKv::Group> copy = CopyPages(ready); copy.ok()) {
        entry->groups.push_back(*std::move(copy));
        return;
      }
      store->Drop(*entry);
    }
    entry->groups.clear();
    entry->charge.Clear();
  });
  sink_->LayersReady(std::move(ready));
}

void RetainingSink::Commit(engine::CommitInfo info,
                           std::function<void(absl::Status status, int64_t wire_bytes)> done) {
  ended_ = true;
  auto both = std::make_shared<BothEnded>(std::move(done));
  retention_.Run([store = &retention_.store(), entry = entry_, info, both] {
    entry->commit = info;
    store->Complete(*entry, absl::Now());
    both->CopyEnded();
  });
  sink_->Commit(
      std::move(info),
      [store = &retention_.store(), entry = entry_, both](absl::Status status, int64_t wire_bytes) {
        if (status.ok()) {
          store->Acknowledge(*entry);
        }
        both->TransferEnded(std::move(status), wire_bytes);
      });
}

void RetainingSink::Abort(absl::Status reason, std::function<void()> released) {
  ended_ = true;
  retention_.store().Drop(*entry_);
  auto both = std::make_shared<BothEnded>(
      [released = std::move(released)](const absl::Status& /*status*/, int64_t /*wire_bytes*/) {
        released();
      });
  retention_.Run([both] { both->CopyEnded(); });  // behind the last copy
  sink_->Abort(std::move(reason), [both] { both->TransferEnded(absl::OkStatus(), 0); });
}

}  // namespace baton::handoff
