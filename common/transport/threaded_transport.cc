#include "common/transport/threaded_transport.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/transport/transport.h"

namespace baton::transport {

void ThreadedTransport::StartThread(PostProgress& progress) {
  progress_ = &progress;
  thread_ = std::thread([&progress] { progress.Run(); });
}

void ThreadedTransport::StopThread() {
  if (!thread_.joinable()) {
    return;
  }
  Release();
  inbox_->Push([this] { progress_->Stop(); });
  thread_.join();
  inbox_->Close();
}

absl::StatusOr<std::shared_ptr<Connection>> ThreadedTransport::AwaitConnect(
    std::string_view address,
    std::function<void(const std::shared_ptr<ConnectCall>& call)> connect) {
  const auto call = std::make_shared<ConnectCall>();
  inbox_->Push([call, connect = std::move(connect)] { connect(call); });
  call->done.WaitForNotification();
  if (!call->result.ok()) {
    const absl::Status& status = call->result.status();
    return absl::Status(
        status.code(),
        absl::StrCat("connecting to ", std::string(address), ": ", status.message()));
  }
  return *call->result;
}

absl::Status ThreadedTransport::Post(const std::shared_ptr<Connection>& connection,
                                     PostParams params) {
  const auto peer = std::dynamic_pointer_cast<PeerConnection>(connection);
  if (peer == nullptr) {
    return absl::InvalidArgumentError("the connection was not made by this transport");
  }
  const auto has_bytes = [](const SendRun& run) { return !run.source.empty(); };
  if (std::none_of(params.runs.begin(), params.runs.end(), has_bytes)) {
    return absl::InvalidArgumentError("a post needs at least one byte");
  }
  if (peer->lost()) {
    return absl::UnavailableError("the connection is lost");
  }
  const absl::MutexLock lock(&mutex_);
  if (completions_->released()) {
    return absl::UnavailableError("the transport was released");
  }
  if (open_posts_.size() >= static_cast<size_t>(max_open_posts_)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(max_open_posts_, " posts are open; retry after a completion"));
  }
  if (!open_posts_.emplace(params.tag, peer).second) {
    return absl::AlreadyExistsError("a post with this tag is open");
  }
  // With the lock, so that a Release comes before the check or after the start.
  inbox_->Push([this, id = peer->id(), params = std::move(params)]() mutable {
    progress_->Post(id, std::move(params));
  });
  return absl::OkStatus();
}

std::function<void(Completion)> ThreadedTransport::OnSent() {
  return [this](Completion completion) { EndPost(std::move(completion)); };
}

void ThreadedTransport::EndPost(Completion completion) {
  std::shared_ptr<PeerConnection> connection;  // released without the lock
  {
    const absl::MutexLock lock(&mutex_);
    const auto found = open_posts_.find(completion.tag);
    connection = std::move(found->second);
    open_posts_.erase(found);
  }
  completions_->Push(std::move(completion));
}

void ThreadedTransport::CancelPost(uint64_t tag) {
  inbox_->Push([this, tag] { progress_->Cancel(tag); });
}

void ThreadedTransport::Release() {
  completions_->Release();
  windows_->WithdrawAll();
  const absl::MutexLock lock(&mutex_);
  inbox_->Push([this] { progress_->CancelAll(); });
}

}  // namespace baton::transport
