// Prefill and decode workers in this process, and a client that plays the router.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"

#include "common/worker/worker_options.h"
#include "proto/baton/worker/v1/decode.grpc.pb.h"
#include "proto/baton/worker/v1/prefill.grpc.pb.h"
#include "services/decode/decode_server.h"
#include "services/prefill/prefill_server.h"

namespace baton {

// Options of a small worker with the tiny trained model on free loopback ports.
worker::WorkerOptions TinyOptions(engine::Role role);

std::unique_ptr<decode::DecodeServer> StartDecode(const worker::WorkerOptions& options);
std::unique_ptr<prefill::PrefillServer> StartPrefill(const worker::WorkerOptions& options);
std::shared_ptr<grpc::Channel> ChannelTo(worker::Worker& worker, const rpc::TlsOptions& tls = {});

// A prompt of `tokens` varied, valid token ids.
std::vector<int32_t> Prompt(int tokens);

struct Request {
  std::string id = "r-1";
  std::vector<int32_t> prompt = Prompt(40);
  worker::v1::SamplingParams sampling;
  std::string kv_policy = "dense";
  std::string session_id;  // of the conversation that it is a turn of
  absl::Time deadline = absl::InfiniteFuture();
};

// Greedy, one sequence of `max_tokens` tokens.
Request GreedyRequest(const std::string& id, int prompt_tokens, uint32_t max_tokens);

// What came out of a request: tokens and finish per sequence, and its accounting.
struct Outcome {
  absl::Status status;
  std::vector<std::vector<uint32_t>> tokens;                        // [n]
  std::vector<std::vector<worker::v1::SequenceFinished>> finished;  // [n]; one each when complete
  worker::v1::PrefillAccepted accepted;
  worker::v1::PrefillCommitted committed;
  worker::v1::DecodeUsage usage;
  bool has_usage = false;
};

// One Decode.Generate call, read message by message.
class DecodeCall {
 public:
  // `with_prompt`: role both.
  DecodeCall(const std::shared_ptr<grpc::Channel>& channel,
             const Request& request,
             bool with_prompt);
  ~DecodeCall() { context_.TryCancel(); }

  // The next message, or false at the end.
  bool Read(worker::v1::DecodeEvent* event) { return reader_->Read(event); }
  // Reads the first message; false when the call failed.
  bool ReadReserved(worker::v1::Reserved* reserved);
  // Reads to the end into `outcome`.
  void ReadAll(Outcome& outcome);
  void Cancel() { context_.TryCancel(); }
  absl::Status Finish();

 private:
  std::unique_ptr<worker::v1::Decode::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<worker::v1::DecodeEvent>> reader_;
};

// One Prefill.Prefill call.
class PrefillCall {
 public:
  PrefillCall(const std::shared_ptr<grpc::Channel>& channel,
              const Request& request,
              const worker::v1::Reserved& reserved,
              uint32_t attempt = 1,
              bool use_retained_kv = false);
  ~PrefillCall() { context_.TryCancel(); }

  bool Read(worker::v1::PrefillEvent* event) { return reader_->Read(event); }
  // Reads until the first progress message (the prompt is being computed); false at the end.
  bool ReadUntilProgress();
  void ReadAll(Outcome& outcome);
  void Cancel() { context_.TryCancel(); }
  absl::Status Finish();

 private:
  std::unique_ptr<worker::v1::Prefill::Stub> stub_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReader<worker::v1::PrefillEvent>> reader_;
};

// Tells prefill that the request has ended, as a router does.
void ReleaseKv(const std::shared_ptr<grpc::Channel>& prefill, const std::string& request_id);

// An outcome that holds nothing yet, of as many sequences as the request has.
Outcome EmptyOutcome(const Request& request);

// The whole way: reserve, prefill unless decode goes on from kept KV, decode, release.
Outcome RunSplit(const std::shared_ptr<grpc::Channel>& prefill,
                 const std::shared_ptr<grpc::Channel>& decode,
                 const Request& request);
// The same on a worker of role both.
Outcome RunBoth(const std::shared_ptr<grpc::Channel>& both, const Request& request);

// Every gauge of /metrics by its name and labels.
std::map<std::string, double> Gauges(worker::Worker& worker);
// Waits until nothing runs, waits or is reserved and every byte of every pool is free, KV kept
// between turns included; false after `timeout`.
bool AtBaseline(worker::Worker& worker, absl::Duration timeout = absl::Seconds(20));
// Waits for `condition`, at most `timeout`.
bool Eventually(const std::function<bool()>& condition, absl::Duration timeout = absl::Seconds(20));

}  // namespace baton
