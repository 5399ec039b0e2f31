#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "absl/time/clock.h"

#include "common/base/status_macros.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/handoff/land/landing.h"
#include "common/handoff/send/sender.h"
#include "common/transport/loopback/loopback_transport.h"
#include "common/worker/compute.h"
#include "common/worker/prompt_layout.h"
#include "common/worker/worker_options.h"
#include "services/lab/eval/collector.h"
#include "services/lab/eval/generator.h"
#include "services/lab/eval/loopback_control.h"

namespace baton::lab {
namespace {

// Members are destroyed in reverse order: the engines stop before what they ship through.
class SplitGenerator : public Generator {
 public:
  SplitGenerator(std::unique_ptr<worker::Compute> prefill, std::unique_ptr<worker::Compute> decode)
      : prefill_compute_(std::move(prefill)),
        decode_compute_(std::move(decode)),
        network_(std::make_shared<transport::LoopbackNetwork>()),
        send_transport_(network_, {.name = "prefill"}),
        land_transport_(network_, {.name = "decode"}),
        landing_({&land_transport_}, decode_compute_->layout, {}),
        handshake_(landing_),
        sender_({&send_transport_}, &handshake_, prefill_compute_->layout, {}) {}

  ~SplitGenerator() override {
    prefill_.reset();
    decode_.reset();
  }

  absl::Status StartEngines(engine::EngineOptions options) {
    options.role = engine::Role::kDecode;
    BATON_ASSIGN_OR_RETURN(decode_, MakeEngine(*decode_compute_, options, &landing_));
    landing_.set_engine(decode_.get());
    options.role = engine::Role::kPrefill;
    BATON_ASSIGN_OR_RETURN(prefill_, MakeEngine(*prefill_compute_, options, nullptr));
    return absl::OkStatus();
  }

  absl::StatusOr<GeneratedAnswer> Generate(engine::GenerateRequest request) override {
    const absl::Time start = absl::Now();
    const auto decoded = std::make_shared<Collector>();
    const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
    BATON_ASSIGN_OR_RETURN(const worker::v1::Reserved reserved, Reserve(request, decoded));
    const auto prefilled = std::make_shared<Collector>();
    if (reserved.local_prefill()) {
      return Answer(start, *prefilled, *decoded);
    }
    request.session_id.clear();  // decode's alone
    BATON_ASSIGN_OR_RETURN(const engine::HandoffShape shape,
                           prefill_->DescribeHandoff(request.kv_policy, prompt_tokens));
    const std::string request_id = request.request_id;
    request.sink = sender_.Open(
        {.request_id = request_id,
         .reserved = reserved,
         .prompt_tokens = prompt_tokens,
         .layout = worker::PromptLayout(prefill_compute_->layout, shape),
         .pages = {.per_layer = shape.window.pages_per_layer, .hidden = shape.hidden_pages}},
        std::make_unique<LoopbackControlStream>(landing_));
    const absl::StatusOr<engine::RequestStats> prefill_stats =
        Prefill(std::move(request), prefilled);
    if (!prefill_stats.ok()) {
      decode_->Cancel(request_id, prefill_stats.status());
      return prefill_stats.status();
    }
    BATON_ASSIGN_OR_RETURN(GeneratedAnswer answer, Answer(start, *prefilled, *decoded));
    answer.stats.kv_wire_bytes = prefill_stats->kv_wire_bytes;
    return answer;
  }

 private:
  // Joins what the two sides said once decode has finished.
  static absl::StatusOr<GeneratedAnswer> Answer(absl::Time start,
                                                const Collector& prefilled,
                                                Collector& decoded) {
    GeneratedAnswer answer;
    BATON_ASSIGN_OR_RETURN(answer.stats, decoded.Wait());
    answer.total_time = absl::Now() - start;
    answer.token_ids = prefilled.token_ids();
    const std::vector<int32_t> rest = decoded.token_ids();
    answer.token_ids.insert(answer.token_ids.end(), rest.begin(), rest.end());
    const std::optional<absl::Time> first = prefilled.first_token_time();
    answer.time_to_first_token = first.value_or(decoded.first_token_time().value_or(start)) - start;
    return answer;
  }

  absl::StatusOr<engine::RequestStats> Prefill(engine::GenerateRequest request,
                                               const std::shared_ptr<Collector>& listener) {
    BATON_RETURN_IF_ERROR(prefill_->Submit(std::move(request), listener));
    return listener->Wait();
  }

  static absl::StatusOr<std::unique_ptr<engine::Engine>> MakeEngine(
      worker::Compute& compute,
      const engine::EngineOptions& options,
      engine::ReservationObserver* reservations) {
    return engine::Engine::Create(std::move(compute.model),
                                  compute.backend->exec(),
                                  compute.backend->ops(),
                                  options,
                                  reservations,
                                  /*observer=*/nullptr);
  }

  absl::StatusOr<worker::v1::Reserved> Reserve(const engine::GenerateRequest& request,
                                               const std::shared_ptr<Collector>& listener) {
    absl::Notification answered;
    absl::StatusOr<worker::v1::Reserved> reserved = absl::UnknownError("no answer");
    BATON_RETURN_IF_ERROR(decode_->Reserve(
        {.request_id = request.request_id,
         .prompt_tokens = static_cast<int64_t>(request.prompt.size()),
         .sampling = request.sampling,
         .kv_policy = request.kv_policy,
         .session_id = request.session_id,
         .prompt = request.session_id.empty() ? std::vector<int32_t>() : request.prompt},
        listener,
        [&](absl::StatusOr<engine::ReservationGrant> grant) {
          reserved = grant.ok() ? Describe(*grant, request.kv_policy)
                                : absl::StatusOr<worker::v1::Reserved>(grant.status());
          answered.Notify();
        }));
    answered.WaitForNotification();
    return reserved;
  }

  absl::StatusOr<worker::v1::Reserved> Describe(const engine::ReservationGrant& grant,
                                                const std::string& kv_policy) {
    worker::v1::Reserved reserved;
    reserved.set_local_prefill(grant.extends_kept);
    if (grant.extends_kept) {
      return reserved;
    }
    BATON_ASSIGN_OR_RETURN(const engine::HandoffShape shape,
                           decode_->DescribeHandoff(kv_policy, grant.prompt_tokens));
    const kv::v1::KvLayout layout = worker::PromptLayout(decode_compute_->layout, shape);
    BATON_ASSIGN_OR_RETURN(const auto endpoints, landing_.Open(grant, layout));
    reserved.set_reservation_id(grant.reservation_id);
    reserved.set_epoch(grant.epoch);
    *reserved.mutable_layout() = layout;
    reserved.set_hidden_pages(static_cast<uint32_t>(grant.hidden_pages));
    reserved.set_pages_per_layer(static_cast<uint32_t>(grant.pages_per_layer));
    reserved.mutable_endpoints()->Assign(endpoints.begin(), endpoints.end());
    reserved.set_control_address("in process");
    return reserved;
  }

  const std::unique_ptr<worker::Compute> prefill_compute_;
  const std::unique_ptr<worker::Compute> decode_compute_;
  const std::shared_ptr<transport::LoopbackNetwork> network_;
  transport::LoopbackTransport send_transport_;
  transport::LoopbackTransport land_transport_;
  handoff::Landing landing_;
  LoopbackHandshake handshake_;
  handoff::Sender sender_;
  std::unique_ptr<engine::Engine> decode_;
  std::unique_ptr<engine::Engine> prefill_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Generator>> MakeSplitGenerator(worker::WorkerOptions options) {
  options.engine.page_dtype = options.compute;
  // Both sides live and end together: there is nobody whose death a lease would have to show.
  options.engine.lease = absl::InfiniteDuration();
  BATON_ASSIGN_OR_RETURN(auto prefill, worker::LoadCompute(options));
  BATON_ASSIGN_OR_RETURN(auto decode, worker::LoadCompute(options));
  options.engine.calibration = prefill->calibration;
  auto generator = std::make_unique<SplitGenerator>(std::move(prefill), std::move(decode));
  BATON_RETURN_IF_ERROR(generator->StartEngines(options.engine));
  return generator;
}

}  // namespace baton::lab
