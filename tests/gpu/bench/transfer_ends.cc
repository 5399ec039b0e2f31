#include "tests/gpu/bench/transfer_ends.h"

#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "grpcpp/security/credentials.h"

#include "common/base/status_macros.h"
#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/nccl/nccl_transport.h"
#include "common/transport/transport.h"
#include "kernels/backend.h"
#include "kernels/core/memory.h"
#include "tests/unit/transport/transport_pair.h"

namespace baton::kernels::cuda {

using transport::IpcTransport;
using transport::NcclTransport;

TransferLine::TransferLine(int fd) : in_(fdopen(fd, "r")), out_(fdopen(dup(fd), "w")) {}

void TransferLine::Say(const std::string& line) const {
  std::fprintf(out_, "%s\n", line.c_str());
  std::fflush(out_);
}

std::vector<std::string> TransferLine::Await() const {
  std::array<char, 4096> line = {};
  if (std::fgets(line.data(), line.size(), in_) == nullptr) {
    return {};
  }
  std::string text(line.data());
  text.pop_back();
  return absl::StrSplit(text, ' ');
}

std::vector<uint64_t> TransferSource(size_t bytes) {
  std::vector<uint64_t> words(bytes / sizeof(uint64_t));
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = i * 0x9e3779b97f4a7c15u;
  }
  return words;
}

absl::StatusOr<std::unique_ptr<TransferReceiver>> TransferReceiver::Open(const TransferLine& line,
                                                                         size_t bytes) {
  std::unique_ptr<TransferReceiver> end(new TransferReceiver());
  BATON_ASSIGN_OR_RETURN(end->backend_, Backend::Open("cuda", 1));
  BATON_ASSIGN_OR_RETURN(end->links_, end->backend_->MakeLinks());
  MemorySpace& space = end->space();
  BATON_ASSIGN_OR_RETURN(end->memory_, space.Allocate(bytes));
  BATON_ASSIGN_OR_RETURN(end->ipc_,
                         IpcTransport::Make({.listens = true, .device = &space.landing()}));
  BATON_ASSIGN_OR_RETURN(
      end->nccl_, NcclTransport::Make({.links = end->links_.get(), .memory = &space.landing()}));
  end->service_ = std::make_unique<transport::LinkService>(end->nccl_.get());
  end->nccl_->set_address(end->server_.Start(*end->service_));
  std::vector<std::string> hello;
  for (const TransferCarrier::Kind kind : {TransferCarrier::kIpc, TransferCarrier::kNccl}) {
    transport::Transport& transport = end->transport(kind);
    BATON_ASSIGN_OR_RETURN(end->windows_.emplace_back(),
                           transport.Register({{end->memory_.data(), bytes}}, space.landing()));
    hello.push_back(transport.connection_data());
    hello.push_back(absl::BytesToHexString(end->windows_.back()->descriptor()));
  }
  line.Say(absl::StrJoin(hello, " "));
  return end;
}

transport::Transport& TransferReceiver::transport(TransferCarrier::Kind kind) {
  if (kind == TransferCarrier::kIpc) {
    return *ipc_;
  }
  return *nccl_;
}

absl::StatusOr<std::unique_ptr<TransferSender>> TransferSender::Open(const TransferLine& line,
                                                                     size_t bytes) {
  std::unique_ptr<TransferSender> end(new TransferSender());
  BATON_ASSIGN_OR_RETURN(end->backend_, Backend::Open("cuda", 1));
  BATON_ASSIGN_OR_RETURN(end->links_, end->backend_->MakeLinks());
  MemorySpace* const space = end->backend_->exec().memory->shared();
  BATON_ASSIGN_OR_RETURN(end->memory_, space->Allocate(bytes));
  const std::vector<uint64_t> words = TransferSource(bytes);
  BATON_RETURN_IF_ERROR(space->Upload(end->memory_.data(), words.data(), bytes));
  end->peer_ = line.Await();
  if (end->peer_.size() != 4) {
    return absl::InternalError("the receiver failed");
  }
  return end;
}

absl::Status TransferSender::Connect(const TransferCarrier& carrier) {
  connection_.reset();
  if (carrier.kind == TransferCarrier::kNccl) {
    BATON_ASSIGN_OR_RETURN(transport_,
                           NcclTransport::Make({.links = links_.get(),
                                                .credentials = grpc::InsecureChannelCredentials(),
                                                .sizes = carrier.sizes}));
  } else {
    BATON_ASSIGN_OR_RETURN(transport_, IpcTransport::Make({}));
  }
  const absl::Time begin = absl::Now();
  BATON_ASSIGN_OR_RETURN(connection_, transport_->Connect(peer_[2 * carrier.kind]));
  connect_ms_ = absl::ToDoubleMilliseconds(absl::Now() - begin);
  window_ = absl::HexStringToBytes(peer_[2 * carrier.kind + 1]);
  return connection_->reads_devices() ? absl::OkStatus()
                                      : absl::InternalError("the peer can't read this GPU");
}

absl::Status TransferSender::Post(std::vector<transport::SendRun> runs, uint64_t transfer_id) {
  return transport_->Post(
      connection_,
      {.window = window_, .runs = std::move(runs), .transfer_id = transfer_id, .tag = transfer_id});
}

absl::StatusOr<size_t> TransferSender::Poll() {
  const std::vector<transport::Completion> sent = transport_->Poll(absl::Now() + kTransferPatience);
  for (const transport::Completion& completion : sent) {
    BATON_RETURN_IF_ERROR(completion.status);
  }
  if (sent.empty()) {
    return absl::DeadlineExceededError("no transfer was completed");
  }
  return sent.size();
}

}  // namespace baton::kernels::cuda
