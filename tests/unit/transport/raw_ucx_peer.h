// A sender over UCX that keeps no rules but those it is told to.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport::ucx {

class RawUcxPeer {
 public:
  explicit RawUcxPeer(const std::string& address) {
    UcxWorker::Handlers handlers;
    handlers.message = [this](ucp_ep_h, std::span<const std::byte> bytes) {
      auto message = DecodeMessage(bytes);
      ASSERT_TRUE(message.ok()) << message.status();
      EXPECT_EQ(message->connection, kConnection);
      arrived_.push_back(std::move(message->body));
    };
    worker_ = *UcxWorker::Make(std::move(handlers));
    endpoint_ = *Endpoint::Connect(*worker_, *Resolve(address, false));
    endpoint_->Send({.connection = 0, .body = Hello{.connection = kConnection}});
    welcome_ = *Await<Welcome>();
    if (puts()) {
      EXPECT_EQ(ucp_ep_rkey_unpack(endpoint_->handle(), welcome_.rkey.data(), &rkey_), UCS_OK);
    }
  }
  ~RawUcxPeer() {
    endpoint_->Close();
    while (!endpoint_->closed()) {
      worker_->Progress();
    }
    if (rkey_ != nullptr) {
      ucp_rkey_destroy(rkey_);
    }
    endpoint_.reset();
  }

  void Say(Body body) { SayOn(welcome_.connection, std::move(body)); }
  void SayOn(uint64_t connection, Body body) {
    endpoint_->Send({.connection = connection, .body = std::move(body)});
    ProgressFor(absl::Milliseconds(1));
  }
  // The next message, which has to be a T; nothing when none comes or the connection ends.
  template <typename T>
  std::optional<T> Await(absl::Duration wait = absl::Seconds(20)) {
    const absl::Time deadline = absl::Now() + wait;
    while (arrived_.empty() && endpoint_->status().ok() && absl::Now() < deadline) {
      worker_->Progress();
    }
    if (arrived_.empty() || !std::holds_alternative<T>(arrived_.front())) {
      return std::nullopt;
    }
    T body = std::get<T>(std::move(arrived_.front()));
    arrived_.pop_front();
    return body;
  }
  // Puts `bytes` into the slot of `written` and says so, or says it with the bytes.
  void Write(Written written, std::span<const std::byte> bytes) {
    if (puts()) {
      ASSERT_TRUE(Put(written.slot, bytes).ok());
    } else {
      written.bytes.assign(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    }
    Say(std::move(written));
  }
  // Returns when the bytes are in the receiver's memory.
  absl::Status Put(uint16_t slot, std::span<const std::byte> bytes) {
    std::optional<absl::Status> flushed;
    endpoint_->Put(bytes, welcome_.base + uint64_t{welcome_.slot_bytes} * slot, rkey_, {});
    endpoint_->Flush([&flushed](const absl::Status& status) { flushed = status; });
    while (!flushed.has_value()) {
      worker_->Progress();
    }
    return *flushed;
  }
  bool AwaitEnd() {
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    while (endpoint_->status().ok() && absl::Now() < deadline) {
      worker_->Progress();
    }
    return !endpoint_->status().ok();
  }
  void ProgressFor(absl::Duration duration) {
    const absl::Time end = absl::Now() + duration;
    do {
      worker_->Progress();
    } while (absl::Now() < end);
  }
  const Welcome& welcome() const { return welcome_; }
  bool puts() const { return !welcome_.rkey.empty(); }

 private:
  static constexpr uint64_t kConnection = 4711;

  std::unique_ptr<UcxWorker> worker_;
  std::unique_ptr<Endpoint> endpoint_;
  std::deque<Body> arrived_;
  Welcome welcome_;
  ucp_rkey_h rkey_ = nullptr;
};

}  // namespace baton::transport::ucx
