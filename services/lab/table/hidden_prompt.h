// A prompt as a worker has it that gets the upper layers of a SwiftKV model as hidden states.
#pragma once

#include <memory>
#include <utility>

#include "absl/status/status.h"

#include "common/kv/codec/hidden/hidden_state.h"
#include "services/lab/table/table_model.h"
#include "services/lab/table/working_pages.h"

namespace baton::lab {

// One wire form of the hidden states, and the pages that are made from it. Policies that differ
// only in the format of the KV share one. Not thread-safe.
class HiddenPrompt {
 public:
  HiddenPrompt(std::unique_ptr<kv::HiddenState> hidden, WorkingPages pages)
      : hidden_(std::move(hidden)), pages_(std::move(pages)) {}

  // Takes the rows of the prompt while it is computed.
  kv::HiddenState& hidden() { return *hidden_; }
  // The prompt's pages once Expand was called.
  WorkingPages& pages() { return pages_; }

  // Makes pages() of the first layers of `prompt` and of the hidden states, which must be complete.
  absl::Status Expand(TableModel& model, const WorkingPages& prompt);

 private:
  const std::unique_ptr<kv::HiddenState> hidden_;
  WorkingPages pages_;
};

}  // namespace baton::lab
