#include "tests/integration/worker/worker_pair.h"

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "prometheus/metric_family.h"

#include "common/engine/engine.h"
#include "common/rpc/channel.h"
#include "common/rpc/limits.h"
#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "common/rpc/tls.h"
#include "common/worker/conversions.h"
#include "common/worker/worker.h"
#include "common/worker/worker_options.h"
#include "services/decode/decode_server.h"
#include "services/prefill/prefill_server.h"

namespace baton {
namespace {

using worker::v1::DecodeEvent;
using worker::v1::PrefillEvent;

void Append(Outcome& outcome, const worker::v1::TokenDelta& delta) {
  for (const auto& token : delta.tokens()) {
    outcome.tokens.at(delta.index()).push_back(token.id());
  }
}

bool AllFree(const engine::EngineLoad& load) {
  return load.pages_free == load.pages_total && load.kept_sessions == 0 && load.kept_bytes == 0 &&
         std::all_of(load.format_pools.begin(), load.format_pools.end(), [](const auto& pool) {
           return pool.bytes.free == pool.bytes.total;
         });
}

}  // namespace

Outcome EmptyOutcome(const Request& request) {
  Outcome outcome;
  outcome.tokens.resize(request.sampling.n());
  outcome.finished.resize(request.sampling.n());
  return outcome;
}

worker::WorkerOptions TinyOptions(engine::Role role) {
  worker::WorkerOptions options;
  options.model_dir = std::string(BATON_SOURCE_DIR) + "/tests/data/models/tiny-llama-needle";
  options.version = "test";
  options.engine.role = role;
  options.pools = {
      .dense = int64_t{64} << 20, .fp8 = 0, .diffkv = 16 << 20, .shadowkv = 16 << 20, .hidden = 0};
  options.engine.step_token_budget = 256;
  options.engine.prefill_chunk_tokens = 128;
  options.engine.max_running_sequences = 16;
  // Whatever the link carries: equal prompts have equally many headers on the wire.
  options.segment_bytes = 8 << 20;
  return options;
}

std::unique_ptr<decode::DecodeServer> StartDecode(const worker::WorkerOptions& options) {
  auto server = decode::DecodeServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

std::unique_ptr<prefill::PrefillServer> StartPrefill(const worker::WorkerOptions& options) {
  auto server = prefill::PrefillServer::Start(options);
  EXPECT_TRUE(server.ok()) << server.status();
  return server.ok() ? *std::move(server) : nullptr;
}

std::shared_ptr<grpc::Channel> ChannelTo(worker::Worker& worker, const rpc::TlsOptions& tls) {
  return *rpc::MakeChannel(worker.address(), tls, rpc::Exposure::kInternal);
}

std::vector<int32_t> Prompt(int tokens) {
  std::vector<int32_t> prompt;
  uint32_t state = 12345;
  for (int i = 0; i < tokens; ++i) {
    state = state * 1664525U + 1013904223U;
    prompt.push_back(static_cast<int32_t>((state >> 8) % 4000U));
  }
  return prompt;
}

Request GreedyRequest(const std::string& id, int prompt_tokens, uint32_t max_tokens) {
  Request request;
  request.id = id;
  request.prompt = Prompt(prompt_tokens);
  request.sampling.set_temperature(0);
  request.sampling.set_top_p(1);
  request.sampling.set_repetition_penalty(1);
  request.sampling.set_n(1);
  request.sampling.set_max_tokens(max_tokens);
  return request;
}

DecodeCall::DecodeCall(const std::shared_ptr<grpc::Channel>& channel,
                       const Request& request,
                       bool with_prompt)
    : stub_(worker::v1::Decode::NewStub(channel)) {
  worker::v1::DecodeRequest proto;
  proto.set_request_id(request.id);
  proto.set_prompt_tokens(static_cast<uint32_t>(request.prompt.size()));
  *proto.mutable_sampling() = request.sampling;
  proto.set_kv_policy(request.kv_policy);
  proto.set_session_id(request.session_id);
  if (with_prompt || !request.session_id.empty()) {
    proto.set_prompt_token_ids(worker::PromptToBytes(request.prompt));
  }
  rpc::SetDeadline(request.deadline, &context_);
  reader_ = stub_->Generate(&context_, proto);
}

bool DecodeCall::ReadReserved(worker::v1::Reserved* reserved) {
  DecodeEvent event;
  if (!reader_->Read(&event) || !event.has_reserved()) {
    return false;
  }
  *reserved = event.reserved();
  return true;
}

void DecodeCall::ReadAll(Outcome& outcome) {
  DecodeEvent event;
  while (reader_->Read(&event)) {
    EXPECT_FALSE(outcome.has_usage) << "usage must be the last message";
    if (event.has_tokens()) {
      Append(outcome, event.tokens());
    } else if (event.has_finished()) {
      outcome.finished.at(event.finished().index()).push_back(event.finished());
    } else if (event.has_usage()) {
      outcome.usage = event.usage();
      outcome.has_usage = true;
    }
  }
  outcome.status = Finish();
}

absl::Status DecodeCall::Finish() { return rpc::FromGrpcStatus(reader_->Finish()); }

PrefillCall::PrefillCall(const std::shared_ptr<grpc::Channel>& channel,
                         const Request& request,
                         const worker::v1::Reserved& reserved,
                         uint32_t attempt,
                         bool use_retained_kv)
    : stub_(worker::v1::Prefill::NewStub(channel)) {
  worker::v1::PrefillRequest proto;
  proto.set_request_id(request.id);
  proto.set_prompt_token_ids(worker::PromptToBytes(request.prompt));
  *proto.mutable_sampling() = request.sampling;
  proto.set_kv_policy(reserved.layout().policy());
  *proto.mutable_reservation() = reserved;
  proto.set_attempt(attempt);
  proto.set_use_retained_kv(use_retained_kv);
  rpc::SetDeadline(request.deadline, &context_);
  reader_ = stub_->Prefill(&context_, proto);
}

bool PrefillCall::ReadUntilProgress() {
  PrefillEvent event;
  while (reader_->Read(&event)) {
    if (event.has_progress()) {
      return true;
    }
  }
  return false;
}

void PrefillCall::ReadAll(Outcome& outcome) {
  PrefillEvent event;
  bool committed = false;
  while (reader_->Read(&event)) {
    if (event.has_accepted()) {
      outcome.accepted = event.accepted();
    }
    for (const auto& delta : event.first_tokens().tokens()) {
      Append(outcome, delta);
    }
    for (const auto& finished : event.first_tokens().finished()) {
      outcome.finished.at(finished.index()).push_back(finished);
    }
    if (event.has_committed()) {
      outcome.committed = event.committed();
      committed = true;
    }
  }
  outcome.status = Finish();
  EXPECT_EQ(outcome.status.ok(), committed) << "OK and `committed` go together";
}

absl::Status PrefillCall::Finish() { return rpc::FromGrpcStatus(reader_->Finish()); }

void ReleaseKv(const std::shared_ptr<grpc::Channel>& prefill, const std::string& request_id) {
  grpc::ClientContext context;
  worker::v1::ReleaseRequest request;
  request.set_request_id(request_id);
  worker::v1::ReleaseResponse response;
  EXPECT_TRUE(worker::v1::Prefill::NewStub(prefill)->Release(&context, request, &response).ok());
}

Outcome RunSplit(const std::shared_ptr<grpc::Channel>& prefill,
                 const std::shared_ptr<grpc::Channel>& decode,
                 const Request& request) {
  Outcome outcome = EmptyOutcome(request);
  DecodeCall decode_call(decode, request, /*with_prompt=*/false);
  worker::v1::Reserved reserved;
  if (!decode_call.ReadReserved(&reserved)) {
    outcome.status = decode_call.Finish();
    return outcome;
  }
  if (!reserved.local_prefill()) {
    PrefillCall prefill_call(prefill, request, reserved);
    prefill_call.ReadAll(outcome);
  }
  if (outcome.status.ok()) {
    decode_call.ReadAll(outcome);
  }
  ReleaseKv(prefill, request.id);
  return outcome;
}

Outcome RunBoth(const std::shared_ptr<grpc::Channel>& both, const Request& request) {
  Outcome outcome = EmptyOutcome(request);
  DecodeCall call(both, request, /*with_prompt=*/true);
  worker::v1::Reserved reserved;
  if (!call.ReadReserved(&reserved)) {
    outcome.status = call.Finish();
    return outcome;
  }
  EXPECT_TRUE(reserved.local_prefill());
  call.ReadAll(outcome);
  return outcome;
}

bool Eventually(const std::function<bool()>& condition, absl::Duration timeout) {
  const absl::Time deadline = absl::Now() + timeout;
  while (!condition()) {
    if (absl::Now() > deadline) {
      return false;
    }
    absl::SleepFor(absl::Milliseconds(2));
  }
  return true;
}

std::map<std::string, double> Gauges(worker::Worker& worker) {
  std::map<std::string, double> gauges;
  for (const prometheus::MetricFamily& family : worker.metrics().registry().Collect()) {
    if (family.type != prometheus::MetricType::Gauge) {
      continue;
    }
    for (const prometheus::ClientMetric& metric : family.metric) {
      std::string name = family.name;
      for (const prometheus::ClientMetric::Label& label : metric.label) {
        absl::StrAppend(&name, " ", label.name, "=", label.value);
      }
      gauges[name] = metric.gauge.value;
    }
  }
  return gauges;
}

bool AtBaseline(worker::Worker& worker, absl::Duration timeout) {
  return Eventually(
      [&] {
        const engine::EngineLoad load = worker.engine().load();
        return worker.idle() && AllFree(load) && load.pages_reserved == 0 &&
               load.reservations == 0 && load.running_sequences == 0 &&
               load.waiting_requests == 0 && load.waiting_tokens == 0 && !load.has_work;
      },
      timeout);
}

}  // namespace baton
