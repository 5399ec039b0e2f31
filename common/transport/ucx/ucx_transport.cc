#include "common/transport/ucx/ucx_transport.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"

#include "common/base/status_macros.h"
#include "common/config/host_port.h"
#include "common/transport/completion_queue.h"
#include "common/transport/transport.h"
#include "common/transport/ucx/inbox.h"
#include "common/transport/ucx/peer_list.h"
#include "common/transport/ucx/progress.h"
#include "common/transport/ucx/ucx_worker.h"
#include "common/transport/window_table.h"

namespace baton::transport {
namespace {

class Transported : public UcxTransport {
 public:
  explicit Transported(const UcxTransportOptions& options)
      : options_(options), progress_(options, inbox_, windows_, [this](Completion completion) {
          OnSent(std::move(completion));
        }) {}
  ~Transported() override;
  absl::Status Bring();

  std::string connection_data() const override { return connection_data_; }
  absl::StatusOr<std::unique_ptr<Window>> Register(
      std::vector<std::span<std::byte>> extents) override {
    return windows_->Register(std::move(extents));
  }
  absl::StatusOr<std::shared_ptr<Connection>> Connect(std::string_view connection_data) override;
  absl::Status Post(const std::shared_ptr<Connection>& connection, PostParams params) override;
  void CancelPost(uint64_t tag) override;
  absl::Status Expect(const ExpectParams& params) override { return WindowTable::Announce(params); }
  std::vector<Completion> Poll(absl::Time deadline) override {
    return completions_->Poll(deadline);
  }
  void Release() override;
  UcxStats stats() const override { return progress_.stats(); }

 private:
  void OnSent(Completion completion);

  const UcxTransportOptions options_;
  std::string connection_data_;
  const std::shared_ptr<CompletionQueue> completions_ = std::make_shared<CompletionQueue>();
  const std::shared_ptr<WindowTable> windows_ = std::make_shared<WindowTable>(completions_);
  const std::shared_ptr<ucx::Inbox> inbox_ = std::make_shared<ucx::Inbox>();
  ucx::Progress progress_;
  std::thread thread_;

  absl::Mutex mutex_;
  // Posts by tag; each keeps its connection.
  std::unordered_map<uint64_t, std::shared_ptr<ucx::UcxConnection>> open_posts_
      ABSL_GUARDED_BY(mutex_);
};

absl::Status Transported::Bring() {
  BATON_RETURN_IF_ERROR(inbox_->Open());
  BATON_ASSIGN_OR_RETURN(const uint16_t port, progress_.Bring());
  if (port != 0) {
    config::HostPort address{.host = options_.advertise_host, .port = port};
    if (address.host.empty()) {
      BATON_ASSIGN_OR_RETURN(const config::HostPort listen,
                             config::ParseHostPort(options_.listen, /*allow_port_zero=*/true));
      address.host = listen.host;
    }
    connection_data_ = address.ToString();
  }
  thread_ = std::thread([this] { progress_.Run(); });
  return absl::OkStatus();
}

Transported::~Transported() {
  if (!thread_.joinable()) {
    return;
  }
  Release();
  inbox_->Push([this] { progress_.Stop(); });
  thread_.join();
  inbox_->Close();
}

absl::StatusOr<std::shared_ptr<Connection>> Transported::Connect(std::string_view connection_data) {
  const std::string address(connection_data);
  BATON_ASSIGN_OR_RETURN(const sockaddr_storage peer,
                         ucx::Resolve(address, /*allow_port_zero=*/false));
  const auto call = std::make_shared<ucx::ConnectCall>();
  inbox_->Push([this, call, peer] { progress_.Connect(call, peer); });
  call->done.WaitForNotification();  // at the latest by connect_timeout
  if (!call->result.ok()) {
    const absl::Status& status = call->result.status();
    return absl::Status(status.code(),
                        absl::StrCat("connecting to ", address, ": ", status.message()));
  }
  return *call->result;
}

absl::Status Transported::Post(const std::shared_ptr<Connection>& connection, PostParams params) {
  const auto peer = std::dynamic_pointer_cast<ucx::UcxConnection>(connection);
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
  absl::MutexLock lock(&mutex_);
  if (completions_->released()) {
    return absl::UnavailableError("the transport was released");
  }
  if (open_posts_.size() >= static_cast<size_t>(options_.max_open_posts)) {
    return absl::ResourceExhaustedError(
        absl::StrCat(options_.max_open_posts, " posts are open; retry after a completion"));
  }
  if (!open_posts_.emplace(params.tag, peer).second) {
    return absl::AlreadyExistsError("a post with this tag is open");
  }
  // With the lock, so that a Release comes before the check or after the start.
  inbox_->Push([this, id = peer->id(), params = std::move(params)]() mutable {
    progress_.Post(id, std::move(params));
  });
  return absl::OkStatus();
}

void Transported::OnSent(Completion completion) {
  std::shared_ptr<ucx::UcxConnection> connection;  // released without the lock
  {
    absl::MutexLock lock(&mutex_);
    const auto found = open_posts_.find(completion.tag);
    connection = std::move(found->second);
    open_posts_.erase(found);
  }
  completions_->Push(std::move(completion));
}

void Transported::CancelPost(uint64_t tag) {
  inbox_->Push([this, tag] { progress_.Cancel(tag); });
}

void Transported::Release() {
  completions_->Release();
  windows_->WithdrawAll();
  absl::MutexLock lock(&mutex_);
  inbox_->Push([this] { progress_.CancelAll(); });
}

absl::Status CheckOptions(const UcxTransportOptions& options) {
  constexpr uint32_t kMinSlotBytes = 4096;
  constexpr uint32_t kMaxSlotBytes = uint32_t{1} << 28;
  if (options.slot_bytes < kMinSlotBytes || options.slot_bytes > kMaxSlotBytes ||
      options.slots_per_peer == 0) {
    return absl::InvalidArgumentError(
        "landing slots must have 4 KiB to 256 MiB, at least one per peer");
  }
  if (options.arena_bytes < int64_t{options.slot_bytes} * options.slots_per_peer) {
    return absl::InvalidArgumentError(
        absl::StrCat("an arena of ",
                     options.arena_bytes,
                     " bytes has no room for the landing slots of one peer, ",
                     int64_t{options.slot_bytes} * options.slots_per_peer,
                     " bytes"));
  }
  constexpr double kMinFloor = 1e6;
  constexpr double kMaxFloor = 1e13;
  if (options.bandwidth_floor != 0 &&
      !(options.bandwidth_floor >= kMinFloor && options.bandwidth_floor <= kMaxFloor)) {
    return absl::InvalidArgumentError("a bandwidth floor must be 0 or 1 MB/s to 10 TB/s");
  }
  return ucx::PeerList::Parse(options.allowed_peers).status();
}

}  // namespace

bool UcxTransport::available() { return true; }

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Make(
    const UcxTransportOptions& options) {
  BATON_RETURN_IF_ERROR(CheckOptions(options));
  auto transport = std::make_unique<Transported>(options);
  BATON_RETURN_IF_ERROR(transport->Bring());
  return transport;
}

}  // namespace baton::transport
