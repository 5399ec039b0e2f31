#include "tests/integration/router/fake_cluster.h"

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpcpp/security/server_credentials.h"
#include "grpcpp/server_builder.h"

#include "services/router/session/proto_time.h"

namespace baton::router {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);
constexpr absl::Duration kStep = absl::Milliseconds(2);
constexpr absl::Duration kReportInterval = absl::Milliseconds(10);

std::atomic<uint64_t> next_id{1};

class OpenCall {
 public:
  explicit OpenCall(std::atomic<int>* count) : count_(count) { ++*count_; }
  ~OpenCall() { --*count_; }

 private:
  std::atomic<int>* const count_;
};

}  // namespace

bool WaitUntil(const std::function<bool()>& done) {
  const absl::Time deadline = absl::Now() + kPatience;
  while (!done()) {
    if (absl::Now() > deadline) {
      return false;
    }
    absl::SleepFor(kStep);
  }
  return true;
}

void WaitForCancel(grpc::ServerContext* context) {
  WaitUntil([context] { return context->IsCancelled(); });
}

void Handoffs::Commit(uint64_t reservation_id) {
  absl::MutexLock lock(&mutex_);
  committed_[reservation_id] = true;
}

bool Handoffs::WaitForCommit(uint64_t reservation_id, grpc::ServerContext* context) {
  return WaitUntil([&] {
           absl::MutexLock lock(&mutex_);
           return committed_[reservation_id] || context->IsCancelled();
         }) &&
         !context->IsCancelled();
}

class FakeWorker::Services final : public worker::v1::Prefill::Service,
                                   public worker::v1::Decode::Service,
                                   public worker::v1::Control::Service {
 public:
  explicit Services(FakeWorker* worker) : worker_(*worker) {}

  grpc::Status Prefill(grpc::ServerContext* context,
                       const worker::v1::PrefillRequest* request,
                       PrefillWriter* writer) override {
    const OpenCall open(&worker_.open_calls_);
    const int call = ++worker_.calls_;
    PrefillHandler handler;
    {
      absl::MutexLock lock(&worker_.mutex_);
      handler = worker_.prefill_;
    }
    return handler ? handler(call, context, *request, writer)
                   : worker_.NormalPrefill(context, *request, writer);
  }

  grpc::Status Release(grpc::ServerContext* /*context*/,
                       const worker::v1::ReleaseRequest* /*request*/,
                       worker::v1::ReleaseResponse* /*response*/) override {
    ++worker_.releases_;
    return grpc::Status::OK;
  }

  grpc::Status Introduce(grpc::ServerContext* /*context*/,
                         const worker::v1::IntroduceRequest* request,
                         worker::v1::IntroduceResponse* /*response*/) override {
    const absl::MutexLock lock(&worker_.mutex_);
    worker_.introduced_.insert(worker_.introduced_.end(),
                               request->control_addresses().begin(),
                               request->control_addresses().end());
    return grpc::Status::OK;
  }

  grpc::Status Generate(grpc::ServerContext* context,
                        const worker::v1::DecodeRequest* request,
                        DecodeWriter* writer) override {
    const OpenCall open(&worker_.open_calls_);
    const int call = ++worker_.calls_;
    DecodeHandler handler;
    {
      absl::MutexLock lock(&worker_.mutex_);
      handler = worker_.decode_;
    }
    return handler ? handler(call, context, *request, writer)
                   : worker_.NormalDecode(context, *request, writer);
  }

  grpc::Status RenewLease(grpc::ServerContext* /*context*/,
                          const worker::v1::RenewLeaseRequest* /*request*/,
                          worker::v1::RenewLeaseResponse* /*response*/) override {
    ++worker_.renewals_;
    return grpc::Status::OK;
  }

  grpc::Status GetServerInfo(grpc::ServerContext* /*context*/,
                             const worker::v1::GetServerInfoRequest* /*request*/,
                             worker::v1::ServerInfo* info) override {
    info->set_role(worker_.role_);
    info->set_incarnation(worker_.incarnation_);
    info->set_max_sequence_tokens(32768);
    info->set_kv_pool_tokens(worker_.pool_tokens_);
    info->set_control_address(worker_.address());
    return grpc::Status::OK;
  }

  grpc::Status WatchLoads(grpc::ServerContext* context,
                          const worker::v1::WatchLoadsRequest* /*request*/,
                          grpc::ServerWriter<worker::v1::Loads>* writer) override {
    while (!context->IsCancelled() && !worker_.stopping_) {
      worker::v1::Loads loads;
      loads.set_incarnation(worker_.incarnation_);
      loads.set_ready(true);
      loads.set_draining(worker_.draining_);
      loads.set_free_slots(worker_.free_slots_);
      loads.set_pages_total(1000);
      loads.set_pages_free(1000);
      if (!writer->Write(loads)) {
        break;
      }
      absl::SleepFor(kReportInterval);
    }
    return grpc::Status::OK;
  }

 private:
  FakeWorker& worker_;
};

FakeWorker::FakeWorker(worker::v1::Role role, Handoffs* handoffs)
    : role_(role), handoffs_(handoffs), services_(std::make_unique<Services>(this)) {}

FakeWorker::~FakeWorker() { Kill(); }

void FakeWorker::Start(int port) {
  stopping_ = false;
  incarnation_ = next_id++;
  grpc::ServerBuilder builder;
  builder.AddListeningPort(
      "127.0.0.1:" + std::to_string(port), grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(static_cast<worker::v1::Prefill::Service*>(services_.get()));
  builder.RegisterService(static_cast<worker::v1::Decode::Service*>(services_.get()));
  builder.RegisterService(static_cast<worker::v1::Control::Service*>(services_.get()));
  server_ = builder.BuildAndStart();
}

void FakeWorker::Kill() {
  stopping_ = true;
  if (server_ != nullptr) {
    server_->Shutdown(absl::ToChronoTime(absl::Now()));
    server_->Wait();
    server_.reset();
  }
}

std::vector<std::string> FakeWorker::introduced() const {
  absl::MutexLock lock(&mutex_);
  return introduced_;
}

void FakeWorker::set_prefill(PrefillHandler handler) {
  absl::MutexLock lock(&mutex_);
  prefill_ = std::move(handler);
}

void FakeWorker::set_decode(DecodeHandler handler) {
  absl::MutexLock lock(&mutex_);
  decode_ = std::move(handler);
}

uint64_t FakeWorker::WriteReserved(const worker::v1::DecodeRequest& request, DecodeWriter* writer) {
  worker::v1::DecodeEvent event;
  worker::v1::Reserved* reserved = event.mutable_reserved();
  reserved->set_reservation_id(next_id++);
  reserved->set_epoch(7);
  *reserved->mutable_lease() = ToProto(absl::Milliseconds(300));
  reserved->set_control_address(address());
  reserved->set_local_prefill(!request.prompt_token_ids().empty());
  reserved->mutable_layout()->set_policy(request.kv_policy());
  writer->Write(event);
  return reserved->reservation_id();
}

void FakeWorker::WriteFirstTokens(const worker::v1::PrefillRequest& request,
                                  PrefillWriter* writer,
                                  uint32_t token) {
  worker::v1::PrefillEvent event;
  for (uint32_t i = 0; i < request.sampling().n(); ++i) {
    worker::v1::TokenDelta* delta = event.mutable_first_tokens()->add_tokens();
    delta->set_index(i);
    delta->add_tokens()->set_id(token);
  }
  writer->Write(event);
}

void FakeWorker::WriteToken(uint32_t index, DecodeWriter* writer) {
  worker::v1::DecodeEvent event;
  event.mutable_tokens()->set_index(index);
  event.mutable_tokens()->add_tokens()->set_id(kNextToken);
  if (writer->Write(event)) {
    ++tokens_written_;
  }
}

grpc::Status FakeWorker::NormalPrefill(grpc::ServerContext* /*context*/,
                                       const worker::v1::PrefillRequest& request,
                                       PrefillWriter* writer) {
  worker::v1::PrefillEvent accepted;
  accepted.mutable_accepted()->set_retains_kv(retains_kv_);
  accepted.mutable_accepted()->set_from_retained_kv(request.use_retained_kv());
  writer->Write(accepted);
  WriteFirstTokens(request, writer);
  handoffs_->Commit(request.reservation().reservation_id());
  worker::v1::PrefillEvent committed;
  committed.mutable_committed()->set_kv_wire_bytes(1234);
  committed.mutable_committed()->set_transport("grpc");
  writer->Write(committed);
  return grpc::Status::OK;
}

size_t FakeWorker::DeliveredTokens(const worker::v1::DecodeRequest& request, uint32_t index) {
  const int sequence = static_cast<int>(index);
  return sequence < request.delivered_size()
             ? request.delivered(sequence).token_ids().size() / sizeof(int32_t)
             : 0;
}

grpc::Status FakeWorker::NormalDecode(grpc::ServerContext* context,
                                      const worker::v1::DecodeRequest& request,
                                      DecodeWriter* writer) {
  const bool local = !request.prompt_token_ids().empty();
  const uint64_t reservation_id = WriteReserved(request, writer);
  if (!local && !handoffs_->WaitForCommit(reservation_id, context)) {
    return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
  }
  const uint32_t by_prefill = local ? 0 : 1;
  for (uint32_t i = by_prefill; i < request.sampling().max_tokens(); ++i) {
    for (uint32_t index = 0; index < request.sampling().n(); ++index) {
      if (i < DeliveredTokens(request, index)) {
        continue;
      }
      if (context->IsCancelled()) {
        return grpc::Status(grpc::StatusCode::CANCELLED, "cancelled");
      }
      WriteToken(index, writer);
    }
  }
  for (uint32_t index = 0; index < request.sampling().n(); ++index) {
    worker::v1::DecodeEvent event;
    event.mutable_finished()->set_index(index);
    event.mutable_finished()->set_reason(worker::v1::FINISH_REASON_LENGTH);
    writer->Write(event);
  }
  worker::v1::DecodeEvent usage;
  usage.mutable_usage()->set_completion_tokens(request.sampling().max_tokens());
  usage.mutable_usage()->set_kv_resident_bytes(4321);
  writer->Write(usage);
  return grpc::Status::OK;
}

}  // namespace baton::router
