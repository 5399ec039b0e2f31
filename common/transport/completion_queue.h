// Hands completions from any thread to the one progress thread of a transport.
#pragma once

#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "common/transport/transport.h"

namespace baton::transport {

// Thread-safe. Bounded by what its transport allows to be open: every open post and announced
// transfer pushes exactly one completion.
class CompletionQueue {
 public:
  void Push(Completion completion);
  // Makes the present or next Poll return, possibly with nothing.
  void Wake();
  // Everything pushed so far; waits for something until `deadline`, a Wake, or Release.
  std::vector<Completion> Poll(absl::Time deadline);
  // From now on Poll returns at once.
  void Release();
  bool released() const;

 private:
  mutable absl::Mutex mutex_;
  absl::CondVar changed_;
  std::vector<Completion> completions_ ABSL_GUARDED_BY(mutex_);
  bool woken_ ABSL_GUARDED_BY(mutex_) = false;
  bool released_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace baton::transport
