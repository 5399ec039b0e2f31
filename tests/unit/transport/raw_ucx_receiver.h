// A receiver over UCX that answers Hello as it is told to, and nothing else.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <variant>

#include "gtest/gtest.h"

#include "common/transport/ucx/endpoint.h"
#include "common/transport/ucx/message.h"
#include "common/transport/ucx/ucx_worker.h"

namespace baton::transport::ucx {

class RawUcxReceiver {
 public:
  explicit RawUcxReceiver(Welcome welcome) : welcome_(std::move(welcome)) {
    UcxWorker::Handlers handlers;
    handlers.message = [this](ucp_ep_h, std::span<const std::byte> bytes) {
      const auto message = DecodeMessage(bytes);
      ASSERT_TRUE(message.ok()) << message.status();
      if (const auto* hello = std::get_if<Hello>(&message->body)) {
        greeted_by_ = hello->connection;
      }
    };
    handlers.connection = [this](ucp_conn_request_h request, const sockaddr_storage&) {
      endpoint_ = *Endpoint::Accept(*worker_, request);
    };
    worker_ = *UcxWorker::Make(std::move(handlers));
    port_ = *worker_->Listen("127.0.0.1:0");
    thread_ = std::thread([this] { Run(); });
  }
  ~RawUcxReceiver() {
    stopping_ = true;
    thread_.join();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  void Run() {
    while (!stopping_) {
      worker_->Progress();
      if (greeted_by_.has_value()) {
        endpoint_->Send({.connection = *std::exchange(greeted_by_, {}), .body = welcome_});
      }
    }
    endpoint_.reset();
  }

  const Welcome welcome_;
  std::unique_ptr<UcxWorker> worker_;
  uint16_t port_ = 0;
  std::unique_ptr<Endpoint> endpoint_;
  std::optional<uint64_t> greeted_by_;
  std::atomic<bool> stopping_{false};
  std::thread thread_;
};

}  // namespace baton::transport::ucx
