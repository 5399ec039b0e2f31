// Two processes that move KV from one GPU to another: what both measurements of transfers need.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "common/transport/ipc/ipc_transport.h"
#include "common/transport/transport.h"
#include "kernels/backend.h"
#include "kernels/core/device_link.h"
#include "kernels/core/exec_context.h"
#include "kernels/core/memory.h"
#include "tests/gpu/bench/transfer_nccl_end.h"

namespace baton::kernels::cuda {

// Nothing here takes that long.
inline constexpr absl::Duration kTransferPatience = absl::Seconds(60);

// Lines to and from the other process.
class TransferLine {
 public:
  // Takes the socket over.
  explicit TransferLine(int fd);
  void Say(const std::string& line) const;
  // The words of the next line; none when the other has ended.
  std::vector<std::string> Await() const;

 private:
  std::FILE* const in_;
  std::FILE* const out_;
};

struct TransferCarrier {
  // kNcclRegistered: NCCL whose slots are registered on both ends.
  enum Kind : uint8_t { kIpc, kNccl, kNcclRegistered };
  static constexpr std::array kKinds = {kIpc, kNccl, kNcclRegistered};

  Kind kind = kIpc;
  LinkSizes sizes{};  // of NCCL's
  const char* name() const { return kind == kIpc ? "ipc" : "nccl"; }
};

// What the sender's memory holds: words that are all different.
std::vector<uint64_t> TransferSource(size_t bytes);

// A block of a device's memory as a window of each kind of carrier that there is: an NCCL may be
// unable to register slots.
class TransferReceiver {
 public:
  // On the first device that this process sees. Tells the sender how to reach the windows.
  static absl::StatusOr<std::unique_ptr<TransferReceiver>> Open(const TransferLine& line,
                                                                size_t bytes);

  MemorySpace& space() { return *backend_->exec().memory; }
  const std::byte* memory() const { return memory_.data(); }
  transport::Transport& transport(TransferCarrier::Kind kind);
  const transport::Window& window(TransferCarrier::Kind kind) const { return *windows_[kind]; }

 private:
  TransferReceiver() = default;
  absl::Status OpenNccl();
  // Makes the window of the next kind; the words that tell the sender of it.
  absl::StatusOr<std::vector<std::string>> Introduce(TransferCarrier::Kind kind, size_t bytes);

  std::unique_ptr<Backend> backend_;
  Memory memory_;
  std::unique_ptr<transport::IpcTransport> ipc_;
  std::array<std::unique_ptr<TransferNcclEnd>, 2> nccl_;     // the second with registered slots
  std::vector<std::unique_ptr<transport::Window>> windows_;  // by kind; null where there is none
};

// A block of another device's memory that holds TransferSource, and a connection to the receiver.
class TransferSender {
 public:
  // Waits for the receiver to tell of its windows.
  static absl::StatusOr<std::unique_ptr<TransferSender>> Open(const TransferLine& line,
                                                              size_t bytes);

  // kUnimplemented where one of the ends has no such carrier.
  absl::Status Supports(TransferCarrier::Kind kind) const;
  // In place of the connection before. Supports' error; kInternal where the receiver can't read
  // this device.
  absl::Status Connect(const TransferCarrier& carrier);
  double connect_ms() const { return connect_ms_; }

  const std::byte* memory() const { return memory_.data(); }
  LandingMemory& landing() { return backend_->exec().memory->landing(); }
  absl::Status Post(std::vector<transport::SendRun> runs, uint64_t transfer_id);
  // How many posts are complete; waits for one. An error of one of them, or kDeadlineExceeded.
  absl::StatusOr<size_t> Poll();

 private:
  TransferSender() = default;

  std::unique_ptr<Backend> backend_;
  std::unique_ptr<DeviceLinks> links_;
  absl::StatusOr<std::unique_ptr<DeviceLinks>> registered_links_;
  Memory memory_;
  std::vector<std::string> peer_;  // connection data and window of each kind of carrier
  std::unique_ptr<transport::Transport> transport_;
  std::shared_ptr<transport::Connection> connection_;
  std::string window_;
  double connect_ms_ = 0.0;
};

}  // namespace baton::kernels::cuda
