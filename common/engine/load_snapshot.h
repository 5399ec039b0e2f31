// The engine's load as others see it.
#pragma once

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/engine.h"

namespace baton::engine {

// Written by the engine thread after every round, read from any thread.
class LoadSnapshot {
 public:
  void Set(const EngineLoad& load) {
    absl::MutexLock lock(&mutex_);
    load_ = load;
  }
  EngineLoad Get() const {
    absl::MutexLock lock(&mutex_);
    return load_;
  }

 private:
  mutable absl::Mutex mutex_;
  EngineLoad load_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace baton::engine
