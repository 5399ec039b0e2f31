#include "common/engine/executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

#include "common/base/check.h"
#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/engine/ready_kv.h"

namespace baton::engine {

Executor::Executor(const ExecutorContext& context, StepDone done)
    : context_(context),
      done_(std::move(done)),
      scratch_(static_cast<size_t>(context.exec->pool->threads())),
      thread_([this] { ThreadMain(); }) {}

Executor::~Executor() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    wake_.Signal();
  }
  thread_.join();
}

void Executor::Submit(std::unique_ptr<Step> step) {
  absl::MutexLock lock(&mutex_);
  BATON_CHECK(submitted_ == nullptr);
  submitted_ = std::move(step);
  wake_.Signal();
}

std::unique_ptr<Step> Executor::TakeStep() {
  absl::MutexLock lock(&mutex_);
  while (submitted_ == nullptr && !stopping_) {
    wake_.Wait(&mutex_);
  }
  return std::move(submitted_);
}

void Executor::ThreadMain() {
  while (std::unique_ptr<Step> step = TakeStep()) {
    Run(*step);
    done_(std::move(step));
  }
}

void Executor::Run(Step& step) {
  step.started = context_.clock->Now();
  step.status = PreparePages(step);
  if (step.status.ok() && !step.token_ids.empty()) {
    step.status = Forward(step);
  }
  if (step.status.ok()) {
    Sample(step);
  } else {
    step.status = WithContext(step.status, absl::StrCat("engine step ", step.number));
  }
  step.finished = context_.clock->Now();
}

absl::Status Executor::PreparePages(const Step& step) {
  for (const kv::PageId page : step.zero_pages) {
    const std::span<std::byte> bytes = context_.pool->page(page);
    std::memset(bytes.data(), 0, bytes.size());
  }
  if (step.copy_sources.empty()) {
    return absl::OkStatus();
  }
  return context_.ops->copy_pages(
      *context_.exec,
      {.source = step.copy_sources.data(),
       .target = step.copy_targets.data(),
       .count = static_cast<int64_t>(step.copy_sources.size()),
       .pages = {.base = context_.pool->base(), .layout = context_.layout}});
}

std::span<float> Executor::Logits(const Step& step) {
  const size_t count =
      step.logit_rows.size() * static_cast<size_t>(context_.model->config().vocab_size);
  if (logits_.size() < count * sizeof(float)) {
    logits_ = kernels::Buffer(std::max(count * sizeof(float), 2 * logits_.size()));
  }
  return {logits_.as<float>(), count};
}

absl::Status Executor::Forward(const Step& step) {
  int32_t layers_written = 0;
  const model::ForwardBatch batch = {
      .token_ids = step.token_ids,
      .positions = step.positions,
      .sequences = step.slices,
      .survivors = step.survivors,
      .logit_rows = step.logit_rows,
      .pages = {.base = context_.pool->base(), .layout = context_.layout},
      .on_kv_layers_written =
          [&](int32_t layer_begin, int32_t layer_end) {
            layers_written += layer_end - layer_begin;
            ShipLayers(step, layer_begin, layer_end);
          },
      .on_hidden = {}};
  BATON_RETURN_IF_ERROR(context_.model->Forward(batch, Logits(step)));
  const int32_t layers = context_.model->kv_shape().layers;
  if (layers_written != layers) {
    return absl::InternalError(absl::StrCat(
        "the model reported ", layers_written, " written KV layers instead of ", layers));
  }
  return absl::OkStatus();
}

void Executor::ShipLayers(const Step& step, int32_t layer_begin, int32_t layer_end) {
  for (const StepSequence& sequence : step.sequences) {
    if (sequence.ship.sink != nullptr && sequence.ship.page_begin < sequence.ship.page_end) {
      sequence.ship.sink->LayersReady(MakeReadyKv(
          sequence, layer_begin, layer_end, context_.layout.page_bytes(), *context_.pool));
    }
  }
}

void Executor::Sample(Step& step) {
  const std::span<const float> logits = Logits(step);
  const auto vocab = static_cast<size_t>(context_.model->config().vocab_size);
  context_.exec->pool->ParallelFor(
      static_cast<int64_t>(step.samples.size()), [&](int64_t index, int thread) {
        SampleJob& job = step.samples[static_cast<size_t>(index)];
        job.input.logits = logits.subspan(static_cast<size_t>(job.logit_row) * vocab, vocab);
        job.output = SampleToken(job.input, scratch_[static_cast<size_t>(thread)]);
      });
}

}  // namespace baton::engine
