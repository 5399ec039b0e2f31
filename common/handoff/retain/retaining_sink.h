// The sink of a request whose KV is retained.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"

#include "common/engine/kv_sink.h"
#include "common/handoff/retain/retained_kv.h"
#include "common/handoff/retain/retention.h"

namespace baton::handoff {

// Made by Retention::Retain. The entry is touched on the retention's thread only.
class RetainingSink final : public engine::KvSink {
 public:
  RetainingSink(Retention* retention,
                std::shared_ptr<RetainedKv> entry,
                std::unique_ptr<engine::KvSink> sink);
  ~RetainingSink() override;

  bool reads_devices() override { return sink_->reads_devices(); }
  void LayersReady(engine::ReadyKv ready) override;
  void Commit(engine::CommitInfo info,
              std::function<void(absl::Status status, int64_t wire_bytes)> done) override;
  void Abort(absl::Status reason, std::function<void()> released) override;

 private:
  Retention& retention_;
  const std::shared_ptr<RetainedKv> entry_;
  const std::unique_ptr<engine::KvSink> sink_;
  bool ended_ = false;
};

}  // namespace baton::handoff
