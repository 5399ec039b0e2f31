#include "tests/integration/router/router_fixture.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/create_channel.h"

#include "common/rpc/request_metadata.h"
#include "common/rpc/status_mapping.h"
#include "services/router/router_options.h"
#include "services/router/server.h"
#include "services/router/workers/worker.h"
#include "tests/integration/router/fake_cluster.h"

namespace baton::router {
namespace {

std::string Addresses(const std::vector<std::unique_ptr<FakeWorker>>& workers) {
  return absl::StrJoin(workers, ",", [](std::string* out, const auto& worker) {
    absl::StrAppend(out, worker->address());
  });
}

}  // namespace

RouterFixture::RouterFixture() = default;

RouterFixture::~RouterFixture() {
  stub_.reset();
  router_.reset();
}

FakeWorker& RouterFixture::AddPrefill() {
  prefills_.push_back(std::make_unique<FakeWorker>(worker::v1::ROLE_PREFILL, &handoffs_));
  prefills_.back()->Start();
  return *prefills_.back();
}

FakeWorker& RouterFixture::AddDecode(worker::v1::Role role) {
  decodes_.push_back(std::make_unique<FakeWorker>(role, &handoffs_));
  decodes_.back()->Start();
  return *decodes_.back();
}

void RouterFixture::Start(RouterOptions options) {
  options.model = std::string(BATON_SOURCE_DIR) + "/tests/data/models/tiny-llama-needle";
  options.model_name = "needle";
  options.prefill = Addresses(prefills_);
  options.decode = Addresses(decodes_);
  auto router = RouterServer::Start(options);
  ASSERT_TRUE(router.ok()) << router.status();
  router_ = *std::move(router);
  stub_ = inference::v1::Inference::NewStub(grpc::CreateChannel(
      absl::StrCat("127.0.0.1:", router_->port()), grpc::InsecureChannelCredentials()));
  if (!decodes_.empty()) {
    ASSERT_TRUE(WaitUntil([this] { return ready(); }));
    // Every worker has reported, not only the first pair.
    ASSERT_TRUE(WaitUntil([this] {
      for (const WorkerKind kind : {WorkerKind::kPrefill, WorkerKind::kDecode}) {
        for (const auto& worker : router_->core().workers->List(kind)) {
          if (worker->view().report_age == absl::InfiniteDuration()) {
            return false;
          }
        }
      }
      return true;
    }));
  }
}

bool RouterFixture::ready() const { return router_->core().admission->CanServe(); }

bool RouterFixture::WorkersIdle() const {
  const auto idle = [](const auto& worker) { return worker->open_calls() == 0; };
  return std::ranges::all_of(prefills_, idle) && std::ranges::all_of(decodes_, idle);
}

inference::v1::GenerateRequest RouterFixture::Request(uint32_t max_tokens) {
  inference::v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(5);
  request.mutable_token_ids()->add_ids(6);
  request.mutable_stopping()->set_max_tokens(max_tokens);
  return request;
}

StreamOutcome RouterFixture::Stream(const inference::v1::GenerateRequest& request,
                                    absl::Duration timeout) {
  grpc::ClientContext context;
  rpc::SetDeadline(absl::Now() + timeout, &context);
  const auto reader = stub_->GenerateStream(&context, request);
  StreamOutcome outcome;
  inference::v1::GenerateStreamResponse message;
  while (reader->Read(&message)) {
    outcome.messages.push_back(message);
    if (message.has_delta() && message.delta().index() == 0) {
      outcome.token_ids.insert(outcome.token_ids.end(),
                               message.delta().token_ids().begin(),
                               message.delta().token_ids().end());
    }
    outcome.finished += message.has_finished() ? 1 : 0;
    if (message.has_usage()) {
      outcome.usage = message.usage();
    }
  }
  outcome.status = rpc::FromGrpcStatus(reader->Finish());
  const auto& metadata = context.GetServerInitialMetadata();
  if (const auto id = metadata.find(rpc::kRequestIdKey); id != metadata.end()) {
    outcome.request_id_header = std::string(id->second.data(), id->second.size());
  }
  return outcome;
}

}  // namespace baton::router
