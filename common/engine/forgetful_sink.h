// A sink for prompts that are computed for their own sake.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

#include "common/engine/kv_sink.h"

namespace baton::engine {

// Takes pages where they are, and forgets them.
class ForgetfulSink final : public KvSink {
 public:
  bool reads_devices() override { return true; }
  void LayersReady(ReadyKv /*ready*/) override {}
  void Commit(CommitInfo /*info*/, std::function<void(absl::Status, int64_t)> done) override {
    done(absl::OkStatus(), 0);
  }
  void Abort(absl::Status /*reason*/, std::function<void()> released) override { released(); }
};

}  // namespace baton::engine
