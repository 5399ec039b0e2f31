// Pages on their way between a device's pools and where prompts are staged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/active_request.h"
#include "common/engine/kv_sink.h"
#include "common/engine/sequence.h"
#include "common/engine/step.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/staged_window.h"
#include "kernels/core/copy_queue.h"
#include "kernels/core/exec_context.h"

namespace baton::engine {

// Staged pages of a stored layer, or those of hidden states behind them, from `page_begin` on:
// where they belong, in pieces.
struct LandingPart {
  int32_t layer = 0;
  int32_t page_begin = 0;
  std::vector<std::span<std::byte>> targets;
};

// Pages of a prompt that have landed beside the pool, to be moved to their places.
struct Landing {
  ActiveRequest* request = nullptr;  // for the engine thread
  Sequence* sequence = nullptr;      // has them staged
  std::vector<LandingPart> parts;
};

// Copies run beside the step that begins them and beside the steps after it, landings beside any; a
// thread waits for them and tells sinks and the engine, in order. Without a copy queue, which a
// host has not, nothing may be shipped or landed.
class StagedCopies {
 public:
  // On that thread, with the error of a copy if there was one: once for every landing, when its
  // pages are on the device, and once for every row of an ended step that ships behind it
  // (ShipsBehind), when its sink has all that was shipped.
  using Copied = std::function<void(ActiveRequest& request, absl::Status status)>;

  // What `exec` points to is borrowed.
  StagedCopies(const kernels::ExecContext& exec, Copied copied);
  // Waits for what is on its way.
  ~StagedCopies();
  StagedCopies(const StagedCopies&) = delete;
  StagedCopies& operator=(const StagedCopies&) = delete;

  // Executor thread. Begins to copy pages, which ops that were called before have written, to where
  // the sequence stages them; one that ships in place only waits for those ops. `ready` has them
  // where the device has them; they must stay as they are until `copied`.
  absl::Status Ship(const StepSequence& rows, ReadyKv ready);
  // Executor thread, right behind its encoding: the pages of a stored layer that ships in place.
  // The sink has them as soon as they are coded.
  absl::Status ShipCoded(const StepSequence& rows, int32_t kv_layer);
  // Executor thread: no more pages of this step, which may have failed, are shipped, and its ops
  // have been called, behind which prompts land from now on.
  absl::Status EndStep(const Step& step);
  // Any thread. Moves what is staged of a prompt to its pages, behind the steps that have ended;
  // the caller knows that one which has not is not at work on them.
  void Land(Landing landing);

 private:
  // Pages for a sink, or what `copied` is to be told.
  struct Entry {
    std::unique_ptr<kernels::CopyQueue::Mark> mark{};  // null: nothing to wait for
    KvSink* sink = nullptr;
    ReadyKv ready{};
    kv::CodedLayer coded{};  // the pages of `ready`, if it has none
    ActiveRequest* request = nullptr;
    std::optional<Landing> landing{};  // that is to be begun, the request's
  };

  // Begins to copy the pages, which are then those that are staged.
  absl::Status Download(const kv::StagedWindow& staged, ReadyKv& ready);
  absl::StatusOr<std::unique_ptr<kernels::CopyQueue::Mark>> Move(const Landing& landing);
  // On the thread: begins the entry's landing, if it has one, and waits for its mark.
  absl::Status Await(Entry& entry);
  // On the thread, when the entry's mark has been waited for.
  static absl::Status TellSink(Entry& entry);
  void Push(Entry entry);
  // Nothing when the object ends and no entry is left.
  std::optional<Entry> Take();
  void ThreadMain();

  const kernels::ExecContext exec_;
  const Copied copied_;

  absl::Mutex mutex_;
  absl::CondVar wake_;
  std::deque<Entry> under_way_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;  // none without a copy queue
};

}  // namespace baton::engine
