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
#include "kernels/core/device_link.h"
#include "kernels/core/memory.h"
#include "kernels/cuda/nccl/nccl_links.h"
#include "tests/gpu/bench/transfer_nccl_end.h"

namespace baton::kernels::cuda {

using transport::IpcTransport;
using transport::NcclTransport;

namespace {

// In place of both words of a carrier that the receiver has not.
constexpr char kAbsent[] = "-";

}  // namespace

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
  MemorySpace& space = end->space();
  BATON_ASSIGN_OR_RETURN(end->memory_, space.Allocate(bytes));
  BATON_ASSIGN_OR_RETURN(end->ipc_,
                         IpcTransport::Make({.listens = true, .device = &space.landing()}));
  BATON_RETURN_IF_ERROR(end->OpenNccl());
  std::vector<std::string> hello;
  for (const TransferCarrier::Kind kind : TransferCarrier::kKinds) {
    BATON_ASSIGN_OR_RETURN(const std::vector<std::string> words, end->Introduce(kind, bytes));
    hello.insert(hello.end(), words.begin(), words.end());
  }
  line.Say(absl::StrJoin(hello, " "));
  return end;
}

absl::Status TransferReceiver::OpenNccl() {
  BATON_ASSIGN_OR_RETURN(std::unique_ptr<DeviceLinks> links, MakeNcclLinks());
  BATON_ASSIGN_OR_RETURN(nccl_[0], TransferNcclEnd::Open(std::move(links), space().landing()));
  absl::StatusOr<std::unique_ptr<DeviceLinks>> registered =
      MakeNcclLinks({.registers_slots = true});
  if (absl::IsUnimplemented(registered.status())) {
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(registered.status());
  BATON_ASSIGN_OR_RETURN(nccl_[1],
                         TransferNcclEnd::Open(*std::move(registered), space().landing()));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::string>> TransferReceiver::Introduce(TransferCarrier::Kind kind,
                                                                     size_t bytes) {
  std::unique_ptr<transport::Window>& window = windows_.emplace_back();
  if (kind == TransferCarrier::kNcclRegistered && nccl_[1] == nullptr) {
    return std::vector<std::string>{kAbsent, kAbsent};
  }
  BATON_ASSIGN_OR_RETURN(window,
                         transport(kind).Register({{memory_.data(), bytes}}, space().landing()));
  return std::vector<std::string>{transport(kind).connection_data(),
                                  absl::BytesToHexString(window->descriptor())};
}

transport::Transport& TransferReceiver::transport(TransferCarrier::Kind kind) {
  if (kind == TransferCarrier::kIpc) {
    return *ipc_;
  }
  return nccl_[kind == TransferCarrier::kNccl ? 0 : 1]->transport();
}

absl::StatusOr<std::unique_ptr<TransferSender>> TransferSender::Open(const TransferLine& line,
                                                                     size_t bytes) {
  std::unique_ptr<TransferSender> end(new TransferSender());
  BATON_ASSIGN_OR_RETURN(end->backend_, Backend::Open("cuda", 1));
  BATON_ASSIGN_OR_RETURN(end->links_, MakeNcclLinks());
  end->registered_links_ = MakeNcclLinks({.registers_slots = true});
  MemorySpace* const space = end->backend_->exec().memory->shared();
  BATON_ASSIGN_OR_RETURN(end->memory_, space->Allocate(bytes));
  const std::vector<uint64_t> words = TransferSource(bytes);
  BATON_RETURN_IF_ERROR(space->Upload(end->memory_.data(), words.data(), bytes));
  end->peer_ = line.Await();
  if (end->peer_.size() != 2 * TransferCarrier::kKinds.size()) {
    return absl::InternalError("the receiver failed");
  }
  return end;
}

absl::Status TransferSender::Supports(TransferCarrier::Kind kind) const {
  if (kind != TransferCarrier::kNcclRegistered) {
    return absl::OkStatus();
  }
  BATON_RETURN_IF_ERROR(registered_links_.status());
  return peer_[2 * kind] == kAbsent
             ? absl::UnimplementedError("the NCCL of the receiver can't register memory")
             : absl::OkStatus();
}

absl::Status TransferSender::Connect(const TransferCarrier& carrier) {
  BATON_RETURN_IF_ERROR(Supports(carrier.kind));
  connection_.reset();
  if (carrier.kind != TransferCarrier::kIpc) {
    DeviceLinks* const links =
        carrier.kind == TransferCarrier::kNccl ? links_.get() : registered_links_->get();
    BATON_ASSIGN_OR_RETURN(transport_,
                           NcclTransport::Make({.links = links,
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
