#include "common/engine/engine.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "common/base/clock.h"
#include "common/base/status_context.h"
#include "common/base/status_macros.h"
#include "common/engine/admission_gate.h"
#include "common/engine/command_queue.h"
#include "common/engine/engine_state.h"
#include "common/engine/engine_thread.h"
#include "common/engine/executor.h"
#include "common/engine/kv_choice.h"
#include "common/engine/load_snapshot.h"
#include "common/engine/model_codecs.h"
#include "common/engine/operations/operations.h"
#include "common/engine/request_checks.h"
#include "common/kv/codec/codec_context.h"
#include "common/kv/codec/codec_set.h"
#include "common/kv/codec/dense_format.h"
#include "common/kv/codec/kv_policy.h"
#include "common/kv/codec/staged_window.h"
#include "common/kv/pool/page_pool.h"
#include "common/kv/pool/reservation_table.h"
#include "common/kv/pool/run_pool.h"
#include "common/model/forward.h"
#include "common/model/model.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/landing_memory.h"
#include "kernels/core/memory.h"
#include "kernels/kv_format/dense.h"
#include "kernels/ops/op_table.h"

namespace baton::engine {
namespace {

absl::Status CheckOptions(const EngineOptions& options, int64_t max_position_embeddings) {
  if (options.step_token_budget < 1 || options.prefill_chunk_tokens < 1 ||
      options.max_running_sequences < 1 || options.max_waiting_requests < 1 ||
      options.max_waiting_tokens < 1 || options.max_queued_commands < 1) {
    return absl::InvalidArgumentError(
        "step_token_budget, prefill_chunk_tokens, max_running_sequences, max_waiting_requests, "
        "max_waiting_tokens and max_queued_commands must be at least 1");
  }
  if (options.lease <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("lease must be positive");
  }
  if (options.max_kept_sessions < 0 || options.max_extension_tokens < 0 ||
      options.kept_ttl <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(
        "max_kept_sessions and max_extension_tokens must not be negative, kept_ttl must be "
        "positive");
  }
  if (options.max_sequence_tokens < 0 || options.max_sequence_tokens > max_position_embeddings) {
    return absl::InvalidArgumentError(absl::StrCat("max_sequence_tokens is ",
                                                   options.max_sequence_tokens,
                                                   "; the model's limit is ",
                                                   max_position_embeddings));
  }
  return absl::OkStatus();
}

// Null where no page is handed off, or pages are the host's themselves.
absl::StatusOr<std::shared_ptr<kv::RunPool>> MakeStaging(const EngineOptions& options,
                                                         const kernels::ExecContext& exec) {
  if (exec.memory->is_host() || options.role == Role::kBoth) {
    return std::shared_ptr<kv::RunPool>();
  }
  if (exec.copies == nullptr) {
    return absl::InternalError("a device that hands off KV needs a queue of copies");
  }
  kernels::MemorySpace& space =
      options.role == Role::kDecode ? *exec.memory : exec.memory->staging();
  auto staging = kv::RunPool::Create(options.staging_bytes, space);
  BATON_RETURN_IF_ERROR(
      WithContext(staging.status(), "staging_bytes, memory for KV that is handed off"));
  return std::shared_ptr<kv::RunPool>(*std::move(staging));
}

// Owns the parts; members are destroyed in reverse order, the engine thread first.
class EngineImpl final : public Engine {
 public:
  EngineImpl(std::unique_ptr<model::Model> model,
             std::unique_ptr<kv::DenseFormat> format,
             std::unique_ptr<kv::PagePool> pool,
             const kernels::ExecContext& exec,
             const kernels::OpTable& ops,
             EngineParts parts)
      : model_(std::move(model)),
        format_(std::move(format)),
        exec_(exec),
        options_(parts.options),
        commands_(
            std::make_shared<CommandQueue>(static_cast<size_t>(parts.options.max_queued_commands))),
        gate_({.max_waiting_requests = parts.options.max_waiting_requests,
               .max_waiting_tokens = parts.options.max_waiting_tokens}),
        executor_({.model = model_.get(),
                   .exec = &exec_,
                   .ops = &ops,
                   .pool = pool.get(),
                   .layout = format_->layout(),
                   .clock = parts.clock},
                  EventsFor(commands_)),
        state_(Complete(std::move(parts), std::move(pool))),
        thread_(state_) {}

  ~EngineImpl() override { Shutdown(); }

  absl::Status Submit(GenerateRequest request, std::shared_ptr<RequestListener> listener) override;
  absl::Status Reserve(ReserveRequest request,
                       std::shared_ptr<RequestListener> listener,
                       ReserveCallback granted) override;
  void BeginAttempt(uint64_t reservation_id,
                    uint64_t epoch,
                    uint32_t attempt,
                    StatusCallback done) override;
  void RenewLease(uint64_t reservation_id, uint64_t epoch, StatusCallback done) override;
  void Commit(uint64_t reservation_id,
              uint64_t epoch,
              uint32_t attempt,
              CommitInfo info,
              StatusCallback done) override;
  void PagesLanded(uint64_t reservation_id,
                   uint64_t epoch,
                   uint32_t attempt,
                   const LandedPages& pages) override;
  void HiddenLanded(uint64_t reservation_id,
                    uint64_t epoch,
                    uint32_t attempt,
                    int32_t pages) override;
  absl::StatusOr<HandoffShape> DescribeHandoff(std::string_view kv_policy,
                                               int64_t prompt_tokens) const override;
  void Cancel(std::string_view request_id, absl::Status reason) override;
  void Drain() override { gate_.Drain(); }
  void Shutdown() override {
    gate_.Drain();
    thread_.Stop();
  }
  EngineLoad load() const override;
  std::vector<std::string> kv_formats() const override;
  const model::Model& model() const override { return *model_; }
  const EngineOptions& options() const override { return options_; }
  kernels::DensePageLayout page_layout() const override { return format_->layout(); }

 private:
  // What the executor tells becomes commands of the engine thread.
  static ExecutorEvents EventsFor(const std::shared_ptr<CommandQueue>& commands);
  EngineParts Complete(EngineParts parts, std::unique_ptr<kv::PagePool> pool);
  // ChooseKv for a prompt of a length that this engine may serve at all: formats compute sizes from
  // it, and it may come from outside.
  absl::StatusOr<KvChoice> Choose(std::string_view kv_policy,
                                  int64_t prompt_tokens,
                                  const KvPressure& pressure = {}) const;
  // Runs `operation`, which answers `done`, on the engine thread.
  template <typename Operation>
  void Ask(Operation operation, const StatusCallback& done);

  const std::unique_ptr<model::Model> model_;
  const std::unique_ptr<kv::DenseFormat> format_;
  const kernels::ExecContext exec_;
  const EngineOptions options_;
  const std::shared_ptr<CommandQueue> commands_;
  AdmissionGate gate_;
  LoadSnapshot load_;
  Executor executor_;
  EngineState state_;
  EngineThread thread_;
};

// Requests that are pointed to stay: they count steps and copies in flight.
ExecutorEvents EngineImpl::EventsFor(const std::shared_ptr<CommandQueue>& commands) {
  return {
      .drawn =
          [commands](std::vector<FirstTokens> prompts) {
            commands->PushAlways([prompts = std::move(prompts)](EngineState& state) {
              for (const FirstTokens& first : prompts) {
                DeliverFirstTokens(state, *first.request, first.tokens, first.drawn);
              }
            });
          },
      .done =
          [commands](std::unique_ptr<Step> step) {
            commands->PushAlways([step = std::move(step)](EngineState& state) mutable {
              RetireStep(state, std::move(step));
            });
          },
      .copied =
          [commands](ActiveRequest& request, absl::Status status) {
            commands->PushAlways([&request, status = std::move(status)](EngineState& state) {
              FinishCopies(state, request, status);
            });
          },
  };
}

EngineParts EngineImpl::Complete(EngineParts parts, std::unique_ptr<kv::PagePool> pool) {
  parts.limits.pages_total = pool->pages_total();
  parts.limits.format = format_.get();
  parts.format = format_.get();
  parts.pool = std::move(pool);
  parts.commands = commands_;
  parts.gate = &gate_;
  parts.load = &load_;
  parts.executor = &executor_;
  return parts;
}

absl::StatusOr<KvChoice> EngineImpl::Choose(std::string_view kv_policy,
                                            int64_t prompt_tokens,
                                            const KvPressure& pressure) const {
  BATON_RETURN_IF_ERROR(CheckPromptLength(state_.parts.limits, prompt_tokens));
  return ChooseKv(*state_.parts.codecs, kv_policy, prompt_tokens, pressure);
}

absl::Status EngineImpl::Submit(GenerateRequest request,
                                std::shared_ptr<RequestListener> listener) {
  const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
  BATON_ASSIGN_OR_RETURN(const KvChoice kv, Choose(request.kv_policy, prompt_tokens));
  BATON_RETURN_IF_ERROR(CheckGenerateRequest(state_.parts.limits, kv, request));
  const std::string id = request.request_id;
  BATON_ASSIGN_OR_RETURN(const uint64_t serial, gate_.EnterQueue(id, prompt_tokens));
  if (request.open_sink != nullptr) {
    request.sink = std::exchange(request.open_sink, nullptr)();
  }
  absl::Status queued = commands_->TryPush([serial,
                                            request = std::move(request),
                                            kv,
                                            listener = std::move(listener),
                                            now = state_.Now()](EngineState& state) mutable {
    QueueRequest(state, serial, std::move(request), kv, std::move(listener), now);
  });
  if (!queued.ok()) {
    gate_.LeaveQueue(prompt_tokens);
    gate_.Leave(id);
  }
  return queued;
}

absl::Status EngineImpl::Reserve(ReserveRequest request,
                                 std::shared_ptr<RequestListener> listener,
                                 ReserveCallback granted) {
  BATON_RETURN_IF_ERROR(CheckReserveRequest(state_.parts.limits, request));
  BATON_ASSIGN_OR_RETURN(const KvChoice kv, Choose(request.kv_policy, request.prompt_tokens));
  const std::string id = request.request_id;
  BATON_ASSIGN_OR_RETURN(const uint64_t serial, gate_.Enter(id));
  absl::Status queued =
      commands_->TryPush([serial,
                          request = std::move(request),
                          kv,
                          listener = std::move(listener),
                          granted = std::move(granted)](EngineState& state) mutable {
        ReservePages(state, serial, std::move(request), kv, std::move(listener), granted);
      });
  if (!queued.ok()) {
    gate_.Leave(id);
  }
  return queued;
}

template <typename Operation>
void EngineImpl::Ask(Operation operation, const StatusCallback& done) {
  absl::Status queued =
      commands_->TryPush([operation = std::move(operation), done](EngineState& state) mutable {
        operation(state, done);
      });
  if (!queued.ok()) {
    done(std::move(queued));
  }
}

void EngineImpl::BeginAttempt(uint64_t reservation_id,
                              uint64_t epoch,
                              uint32_t attempt,
                              StatusCallback done) {
  Ask([key = kv::ReservationKey{reservation_id, epoch}, attempt](
          EngineState& state,
          const StatusCallback& answer) { engine::BeginAttempt(state, key, attempt, answer); },
      done);
}

void EngineImpl::RenewLease(uint64_t reservation_id, uint64_t epoch, StatusCallback done) {
  Ask([key = kv::ReservationKey{reservation_id, epoch}](
          EngineState& state,
          const StatusCallback& answer) { answer(engine::RenewLease(state, key)); },
      done);
}

void EngineImpl::Commit(uint64_t reservation_id,
                        uint64_t epoch,
                        uint32_t attempt,
                        CommitInfo info,
                        StatusCallback done) {
  Ask(
      [key = kv::ReservationKey{reservation_id, epoch}, attempt, info = std::move(info)](
          EngineState& state, const StatusCallback& answer) mutable {
        answer(CommitReservation(state, key, attempt, std::move(info)));
      },
      done);
}

void EngineImpl::PagesLanded(uint64_t reservation_id,
                             uint64_t epoch,
                             uint32_t attempt,
                             const LandedPages& pages) {
  commands_
      ->TryPush([key = kv::ReservationKey{reservation_id, epoch}, attempt, pages](
                    EngineState& state) { LandPages(state, key, attempt, pages); })
      .IgnoreError();
}

void EngineImpl::HiddenLanded(uint64_t reservation_id,
                              uint64_t epoch,
                              uint32_t attempt,
                              int32_t pages) {
  commands_
      ->TryPush([key = kv::ReservationKey{reservation_id, epoch}, attempt, pages](
                    EngineState& state) { LandHidden(state, key, attempt, pages); })
      .IgnoreError();
}

absl::StatusOr<HandoffShape> EngineImpl::DescribeHandoff(std::string_view kv_policy,
                                                         int64_t prompt_tokens) const {
  const EngineLoad now = load_.Get();
  const KvPressure pressure = {.free_share = now.pages_total == 0
                                                 ? 1.0
                                                 : static_cast<double>(now.pages_free) /
                                                       static_cast<double>(now.pages_total)};
  BATON_ASSIGN_OR_RETURN(const KvChoice kv, Choose(kv_policy, prompt_tokens, pressure));
  const kv::StagedShape shipped = PromptShape(*format_, kv, prompt_tokens);
  HandoffShape shape = {.policy = kv.canonical(),
                        .format = std::string(kv::KvFormatName(kv.policy.id())),
                        .format_version = format_->version(),
                        .page_tokens = format_->tokens_per_page(),
                        .window = shipped.window,
                        .shipped_layers = shipped.layers,
                        .hidden_pages = shipped.hidden_pages,
                        .hidden_page_bytes = shipped.hidden_page_bytes};
  if (kv.encoded != nullptr) {
    shape.format_version = kv.encoded->version();
    shape.page_tokens = 0;
    shape.calibration_digest = kv.encoded->calibration_digest();
  }
  return shape;
}

void EngineImpl::Cancel(std::string_view request_id, absl::Status reason) {
  if (const auto serial = gate_.MarkCancelled(request_id, reason)) {
    commands_->PushAlways(
        [id = std::string(request_id), serial = *serial, reason = std::move(reason)](
            EngineState& state) { CancelRequest(state, id, serial, reason); });
  }
}

EngineLoad EngineImpl::load() const {
  EngineLoad load = load_.Get();
  load.draining = gate_.draining();
  return load;
}

std::vector<std::string> EngineImpl::kv_formats() const {
  std::vector<std::string> names = {std::string(format_->name())};
  for (const auto& [id, format] : state_.parts.codecs->formats()) {
    names.emplace_back(kv::KvFormatName(id));
  }
  return names;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(std::unique_ptr<model::Model> model,
                                                       const kernels::ExecContext& exec,
                                                       const kernels::OpTable& ops,
                                                       const EngineOptions& options,
                                                       ReservationObserver* reservations,
                                                       EngineObserver* observer) {
  const int64_t max_positions = model->config().max_position_embeddings;
  BATON_RETURN_IF_ERROR(CheckOptions(options, max_positions));
  const model::KvShape shape = model->kv_shape();
  EngineParts parts;
  parts.options = options;
  parts.dimensions = {
      .layers = shape.layers, .kv_heads = shape.kv_heads, .head_dim = shape.head_dim};
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<kv::DenseFormat> format,
      kv::DenseFormat::Create(parts.dimensions,
                              {.page_tokens = options.page_tokens, .dtype = options.page_dtype}));
  BATON_ASSIGN_OR_RETURN(parts.staging, MakeStaging(options, exec));
  parts.landing = options.role == Role::kDecode ? &exec.memory->landing() : &kernels::HostLanding();
  const int64_t max_sequence_tokens =
      options.max_sequence_tokens > 0 ? options.max_sequence_tokens : max_positions;
  kv::CodecContext codec_context =
      MakeCodecContext(*model, exec, ops, options.page_dtype, max_sequence_tokens);
  codec_context.calibration = options.calibration;
  codec_context.kv_memory = options.kv_memory;
  BATON_ASSIGN_OR_RETURN(
      std::unique_ptr<kv::PagePool> pool,
      kv::PagePool::Create(
          options.kv_pool_bytes, format->stride_bytes(), codec_context.pool_memory()));
  BATON_ASSIGN_OR_RETURN(parts.codecs,
                         kv::CodecSet::Create(std::move(codec_context), options.codec_pools));
  parts.limits = {.role = options.role,
                  .vocab_size = model->config().vocab_size,
                  .max_sequence_tokens = max_sequence_tokens,
                  .max_running_sequences = options.max_running_sequences,
                  .max_waiting_tokens = options.max_waiting_tokens,
                  .staging_bytes = parts.staging == nullptr ? std::optional<int64_t>()
                                                            : parts.staging->bytes_total()};
  parts.clock = options.clock != nullptr ? options.clock : &Clock::Real();
  parts.reservation_observer = reservations;
  parts.observer = observer;
  return std::make_unique<EngineImpl>(
      std::move(model), std::move(format), std::move(pool), exec, ops, std::move(parts));
}

}  // namespace baton::engine
