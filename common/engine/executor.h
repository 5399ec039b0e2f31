// The executor thread: owns the device and the model, runs one step after another.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "common/engine/executor_context.h"
#include "common/engine/ready_kv.h"
#include "common/engine/staged_copies.h"
#include "common/engine/step.h"
#include "common/engine/step_sampler.h"
#include "common/kv/codec/encoded_kv.h"
#include "kernels/core/step_arrays.h"

namespace baton::engine {

// What the executor tells. All but `copied` on the executor thread.
struct ExecutorEvents {
  // The first tokens of prompts that a step completes, before the step is over.
  std::function<void(std::vector<FirstTokens>)> drawn;
  // Every submitted step, exactly once.
  std::function<void(std::unique_ptr<Step>)> done;
  StagedCopies::Copied copied;
};

// Queue of depth 1: the next step needs the tokens of this one, so a deeper queue would stay empty.
class Executor {
 public:
  Executor(const ExecutorContext& context, ExecutorEvents events);
  // Runs a submitted step to its end, and waits for copies that are on their way.
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  // Engine thread. The step before must have come back.
  void Submit(std::unique_ptr<Step> step);
  // Engine thread. As StagedCopies::Land.
  void Land(Landing landing) { staged_.Land(std::move(landing)); }
  // Any thread. EngineLoad::progress.
  int64_t progress() const { return progress_; }

 private:
  void ThreadMain();
  // Null when the executor stops.
  std::unique_ptr<Step> TakeStep();
  void Run(Step& step);
  absl::Status JoinSideQueues();
  absl::Status CopyPages(const Step& step);
  // Makes the KV of the upper layers from hidden states; with the prompt's last ones, encodes them.
  absl::Status Expand(const StepExpansion& expansion);
  // Brings staged hidden states of the expansion's tokens to where they are read.
  absl::Status TakeStaged(const StepExpansion& expansion);
  absl::Status EncodeUpperLayers(kv::EncodedKv& encoded, const kv::WorkingKv& working);
  absl::Status Compute(Step& step);
  // The forward pass and the draws.
  absl::Status ForwardAndDraw(Step& step);
  void TellFirstTokens(const Step& step) const;
  // Encoded prompts that the step completes go from a device to their sinks.
  absl::Status Ship(const Step& step);
  absl::Status ShipStaged(const StepSequence& rows);
  // EncodedKv::Settle of the prompts that the step completes, expanded ones among them.
  static absl::Status Settle(const Step& step);
  StepLayers layers() const;
  absl::Status Forward(const Step& step);

  const ExecutorContext context_;
  const ExecutorEvents events_;
  std::atomic<int64_t> progress_ = 0;
  // Executor thread only.
  kernels::StepArrays arrays_;  // for what comes before the forward pass
  StepSampler sampler_;
  StagedCopies staged_;

  absl::Mutex mutex_;
  absl::CondVar wake_;
  std::unique_ptr<Step> submitted_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace baton::engine
