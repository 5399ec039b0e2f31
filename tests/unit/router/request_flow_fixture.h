// A request's state machine with scripted events of its workers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "services/router/session/request_flow.h"
#include "tests/unit/router/test_model.h"

namespace baton::router {

class CountingObserver final : public FlowObserver {
 public:
  void OnFirstToken(absl::Duration since) override { first_token = since; }
  void OnTokenGap(absl::Duration /*gap*/, int tokens) override { gap_tokens += tokens; }
  void OnRetry(RetryReason reason) override { retries.push_back(reason); }
  void OnResume(bool resumed, bool from_retained) override {
    resumes.push_back(resumed);
    from_retained_kv.push_back(from_retained);
  }

  std::optional<absl::Duration> first_token;
  int gap_tokens = 0;
  std::vector<RetryReason> retries;
  std::vector<bool> resumes;
  std::vector<bool> from_retained_kv;
};

class RequestFlowTest : public ::testing::Test {
 protected:
  void Start(uint32_t n = 1, std::vector<std::string> stop = {}, size_t buffer_bytes = 1 << 18) {
    plan_.request_id = "r";
    plan_.model = "needle";
    plan_.kv_policy = "auto";
    plan_.prompt_tokens = 10;
    plan_.prompt_token_ids = std::make_shared<std::string>(40, '\0');
    plan_.sampling.set_n(n);
    plan_.sampling.set_max_tokens(8);
    plan_.output.stop = std::move(stop);
    plan_.received = now_;
    auto flow = RequestFlow::Create(&plan_,
                                    TestModel().tokenizer.tokenizer.get(),
                                    {.max_attempts = 3, .max_stream_buffer_bytes = buffer_bytes},
                                    &observer_);
    ASSERT_TRUE(flow.ok()) << flow.status();
    flow_.emplace(*std::move(flow));
    flow_->OnQueued(now_);
    flow_->TakeCommands();
  }

  std::vector<FlowCommand> Take() {
    now_ += absl::Milliseconds(1);
    return flow_->TakeCommands();
  }

  std::vector<FlowCommand> Reserve(bool local = false) {
    flow_->TakeCommands();  // of what came before
    flow_->OnPair(local, now_);
    EXPECT_THAT(Take(), ::testing::ElementsAre(FlowCommand::kOpenDecode));
    worker::v1::DecodeEvent event;
    event.mutable_reserved()->set_reservation_id(5);
    event.mutable_reserved()->set_local_prefill(local);
    event.mutable_reserved()->set_pages_per_layer(1);
    auto* layout = event.mutable_reserved()->mutable_layout();
    layout->set_policy("dense");
    layout->set_layers(12);
    layout->set_kv_heads(2);
    layout->set_head_dim(64);
    layout->set_page_bytes(4096);
    flow_->OnDecodeEvent(event, now_);
    return Take();
  }

  static int32_t Token(const std::string& text) {
    return TestModel().tokenizer.tokenizer->Encode(text, false)->at(0);
  }

  worker::v1::PrefillEvent FirstTokens(const std::vector<std::string>& texts) {
    worker::v1::PrefillEvent event;
    for (uint32_t i = 0; i < texts.size(); ++i) {
      auto* delta = event.mutable_first_tokens()->add_tokens();
      delta->set_index(i);
      delta->add_tokens()->set_id(static_cast<uint32_t>(Token(texts[i])));
    }
    return event;
  }

  void SendFirst(const std::string& text = "1") {
    flow_->OnPrefillEvent(FirstTokens({text}), now_);
  }
  void SendCommit() {
    worker::v1::PrefillEvent event;
    event.mutable_committed()->set_kv_wire_bytes(777);
    event.mutable_committed()->set_transport("grpc");
    flow_->OnPrefillEvent(event, now_);
  }
  void SendTokens(const std::string& text, uint32_t index = 0) {
    worker::v1::DecodeEvent event;
    event.mutable_tokens()->set_index(index);
    event.mutable_tokens()->add_tokens()->set_id(static_cast<uint32_t>(Token(text)));
    flow_->OnDecodeEvent(event, now_);
  }
  void SendFinished(uint32_t index = 0) {
    worker::v1::DecodeEvent event;
    event.mutable_finished()->set_index(index);
    event.mutable_finished()->set_reason(worker::v1::FINISH_REASON_LENGTH);
    flow_->OnDecodeEvent(event, now_);
  }
  void SendUsage() {
    worker::v1::DecodeEvent event;
    event.mutable_usage()->set_kv_resident_bytes(888);
    flow_->OnDecodeEvent(event, now_);
  }

  // Everything that waits for the client, as a short script: "S", "D:text", "F", "U".
  std::vector<std::string> Output() {
    std::vector<std::string> script;
    inference::v1::GenerateStreamResponse message;
    while (flow_->output().Pop(&message)) {
      script.push_back(message.has_started()    ? "S"
                       : message.has_delta()    ? "D:" + message.delta().text()
                       : message.has_finished() ? "F"
                                                : "U");
    }
    return script;
  }

  RequestPlan plan_;
  CountingObserver observer_;
  std::optional<RequestFlow> flow_;
  absl::Time now_ = absl::FromUnixSeconds(1000);
};

}  // namespace baton::router
