#include "common/engine/executor.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/base/check.h"
#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/engine/executor_context.h"
#include "common/engine/expand_hidden.h"
#include "common/engine/kv_sink.h"
#include "common/engine/ready_kv.h"
#include "common/engine/sequence.h"
#include "common/engine/step.h"
#include "common/engine/step_kv.h"
#include "common/kv/codec/dense_step_kv.h"
#include "common/kv/codec/encoded_kv.h"
#include "common/kv/codec/hidden/hidden_state.h"
#include "common/kv/codec/staged_window.h"
#include "common/kv/pool/page_copies.h"
#include "common/kv/pool/page_pool.h"
#include "common/model/forward.h"
#include "kernels/core/op_graphs.h"
#include "kernels/core/side_queues.h"
#include "kernels/ops/params.h"

namespace baton::engine {

Executor::Executor(const ExecutorContext& context, ExecutorEvents events)
    : context_(context),
      events_(std::move(events)),
      arrays_(*context.exec->memory),
      sampler_(*context.model, *context.ops, *context.exec),
      staged_(*context.exec, events_.copied),
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
    events_.done(std::move(step));
  }
}

void Executor::Run(Step& step) {
  step.started = context_.clock->Now();
  step.status = CopyPages(step);
  if (step.status.ok() && step.expansion.request != nullptr) {
    step.status = Expand(step.expansion);
  }
  if (step.status.ok()) {
    step.status = Compute(step);
  }
  if (step.status.ok()) {
    step.status = Ship(step);
  }
  step.status.Update(JoinSideQueues());
  step.status.Update(staged_.EndStep(step));
  if (!step.status.ok()) {
    step.status = WithContext(step.status, absl::StrCat("engine step ", step.number));
  }
  step.finished = context_.clock->Now();
  ++progress_;
}

// What a step leaves on side queues is done before the next one begins, and before prompts land
// behind it: pages and blocks that are given back in between may be written again by then.
absl::Status Executor::JoinSideQueues() {
  kernels::SideQueues* const side = context_.exec->side;
  return side == nullptr ? absl::OkStatus() : side->Join();
}

absl::Status Executor::Ship(const Step& step) {
  for (const StepSequence& rows : step.sequences) {
    if (rows.completes_prompt && rows.ship.sink != nullptr && rows.sequence->staged != nullptr &&
        rows.sequence->encoded != nullptr) {
      BATON_RETURN_IF_ERROR(ShipStaged(rows));
    }
  }
  return absl::OkStatus();
}

// Where pages are that are to be copied is known once the host has settled, and they are there once
// the side queues that code them are waited for.
absl::Status Executor::ShipStaged(const StepSequence& rows) {
  BATON_RETURN_IF_ERROR(JoinSideQueues());
  const StepLayers all = layers();
  for (int32_t layer = 0; layer < all.layers; ++layer) {
    ReadyKv ready = MakeReadyKv(*rows.sequence, layer, all);
    if (ready.page_count > 0) {
      BATON_RETURN_IF_ERROR(staged_.Ship(rows, std::move(ready)));
    }
  }
  return absl::OkStatus();
}

absl::Status Executor::CopyPages(const Step& step) {
  if (step.copies.empty()) {
    return absl::OkStatus();
  }
  arrays_.Clear();
  std::vector<kernels::CopyPagesParams> calls;
  calls.reserve(step.copies.size());
  for (const kv::PageCopies& copies : step.copies) {
    calls.push_back({.source = arrays_.Add(copies.sources),
                     .target = arrays_.Add(copies.targets),
                     .count = static_cast<int64_t>(copies.sources.size()),
                     .base = copies.base,
                     .stride_bytes = static_cast<int64_t>(copies.stride_bytes)});
  }
  BATON_RETURN_IF_ERROR(arrays_.Upload());
  for (const kernels::CopyPagesParams& call : calls) {
    BATON_RETURN_IF_ERROR(context_.ops->copy_pages(*context_.exec, call));
  }
  return absl::OkStatus();
}

absl::Status Executor::Compute(Step& step) {
  BATON_RETURN_IF_ERROR(ForwardAndDraw(step));
  TellFirstTokens(step);
  return Settle(step);
}

// Steps that only decode are much alike, which is when launching ops together pays.
absl::Status Executor::ForwardAndDraw(Step& step) {
  kernels::OpGraphs* const graphs = context_.exec->graphs;
  if (graphs != nullptr && step.prefill_tokens == 0) {
    graphs->Begin();
  }
  absl::Status status = step.token_ids.empty() ? absl::OkStatus() : Forward(step);
  if (status.ok()) {
    status = sampler_.Draw(step);
  }
  if (graphs != nullptr) {
    status.Update(graphs->End());
  }
  return status;
}

// A prompt with a draw that failed is told of by the step's end.
void Executor::TellFirstTokens(const Step& step) const {
  std::vector<FirstTokens> prompts;
  for (const StepSequence& rows : step.sequences) {
    if (!rows.completes_prompt) {
      continue;
    }
    FirstTokens& first = prompts.emplace_back();
    first = {.request = rows.request, .tokens = {}, .drawn = context_.clock->Now()};
    for (const SampleJob& job : step.samples) {
      if (job.request == rows.request && job.output.ok()) {
        first.tokens.push_back(*job.output);
      }
    }
    if (std::cmp_not_equal(first.tokens.size(), rows.request->sampling.n)) {
      prompts.pop_back();
    }
  }
  if (!prompts.empty()) {
    events_.drawn(std::move(prompts));
  }
}

absl::Status Executor::Settle(const Step& step) {
  for (const StepSequence& rows : step.sequences) {
    if (rows.completes_prompt && rows.sequence->encoded != nullptr) {
      BATON_RETURN_IF_ERROR(rows.sequence->encoded->Settle());
    }
  }
  const StepExpansion& expansion = step.expansion;
  return expansion.completes_prompt && expansion.sequence->encoded != nullptr
             ? expansion.sequence->encoded->Settle()
             : absl::OkStatus();
}

StepLayers Executor::layers() const {
  return {.layers = context_.model->kv_shape().layers,
          .full_layers = context_.model->config().num_key_value_layers};
}

absl::Status Executor::Forward(const Step& step) {
  EngineStepKv kv(step, context_, layers(), staged_, progress_);
  const model::ForwardBatch batch = {.token_ids = step.token_ids,
                                     .positions = step.positions,
                                     .sequences = step.slices,
                                     .survivors = step.survivors,
                                     .logit_rows = step.logit_rows,
                                     .kv = &kv,
                                     .on_hidden = {}};
  return context_.model->Forward(batch, sampler_.HostLogits(step));
}

absl::Status Executor::TakeStaged(const StepExpansion& expansion) {
  const kv::HiddenState& hidden = *expansion.sequence->hidden;
  const auto first = static_cast<int32_t>(expansion.token_begin / kv::HiddenShape::kPageTokens);
  const auto last = static_cast<int32_t>((expansion.token_begin + expansion.token_count - 1) /
                                         kv::HiddenShape::kPageTokens);
  const int32_t section = layers().full_layers;  // behind the layers that are shipped
  const std::span<std::byte> target = hidden.pages(first, last - first + 1);
  return context_.exec->memory->Copy(
      target.data(), expansion.sequence->staged->pages(section, first, 0).data(), target.size());
}

absl::Status Executor::Expand(const StepExpansion& expansion) {
  const Sequence& sequence = *expansion.sequence;
  if (expansion.landing && sequence.staged != nullptr) {
    BATON_RETURN_IF_ERROR(TakeStaged(expansion));
  }
  const kv::DenseTable table = {.data = sequence.pages.data(),
                                .stride = sequence.pages.stride(),
                                .layers = sequence.pages.tables()};
  const kernels::DensePages pages = {.base = context_.pool->base(), .layout = context_.layout};
  kv::DenseStepKv kv(*context_.ops, *context_.exec, pages, std::span(&table, 1));
  BATON_RETURN_IF_ERROR(ExpandHidden(
      *context_.model, *sequence.hidden, expansion.token_begin, expansion.token_count, kv));
  return expansion.completes_prompt && sequence.encoded != nullptr
             ? EncodeUpperLayers(*sequence.encoded, {.pages = pages, .table = kv.op_table(0)})
             : absl::OkStatus();
}

// The page table, which side queues read, is overwritten by what comes next.
absl::Status Executor::EncodeUpperLayers(kv::EncodedKv& encoded, const kv::WorkingKv& working) {
  BATON_RETURN_IF_ERROR(encoded.PrepareStep());
  const StepLayers all = layers();
  for (int32_t layer = all.full_layers; layer < all.layers; ++layer) {
    BATON_RETURN_IF_ERROR(encoded.EncodeLayer(working, layer));
  }
  return JoinSideQueues();
}

}  // namespace baton::engine
