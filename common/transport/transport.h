// Moves registered bytes between workers and knows nothing of KV (architecture.md section 7).
//
// One-sided in form: the receiver registers a window (a list of memory extents addressed as one
// linear range), the sender posts bytes to an offset of it. A back end that is two-sided underneath
// (NCCL) uses Expect to post its receives. Connection data and window descriptors are opaque blobs
// that callers carry over their control path.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "kernels/core/landing_memory.h"

namespace baton::transport {

// Registered receive memory; destroying it withdraws the window. When the destructor returns no
// write can land in the memory any more, whatever a peer still sends.
class Window {
 public:
  virtual ~Window() = default;
  // Opaque; given to the sender over the control path.
  virtual std::string descriptor() const = 0;
  virtual int64_t size_bytes() const = 0;
  // Gives up every announced transfer that is not complete yet: it completes with kCancelled, and
  // when the call returns it can't write any more. Complete transfers and later ones are untouched.
  virtual void CancelTransfers() = 0;
};

// A peer that can be posted to. Safe to share between threads.
class Connection {
 public:
  virtual ~Connection() = default;
  // What really carries the bytes: "grpc", "loopback", "ucx/rc", ... for the transport metric.
  virtual std::string_view carrier() const = 0;
  // Whether posts may have bytes of this worker's device for source, in blocks of
  // MemorySpace::shared() that were there when it was connected. Never changes.
  virtual bool reads_devices() const { return false; }
  // True once it is known that nothing can be posted any more: a connection that was not in use may
  // have ended meanwhile.
  virtual bool lost() const { return false; }
};

// How bytes that have landed are summed up: by the host while they pass through it (xxh3-64), or
// where they are (kernels/core/word_sum.h), which is the only way for bytes that don't.
enum class Checksum : uint8_t { kXxh3, kWordSum };

enum class CompletionKind { kSent, kReceived };

struct Completion {
  CompletionKind kind = CompletionKind::kSent;
  uint64_t tag = 0;  // the caller's
  absl::Status status{};
  int64_t bytes = 0;
  // kReceived with OK: of the bytes that are in place, in the order of the announced runs.
  uint64_t checksum = 0;
};

// A contiguous piece of a transfer: `source` goes to bytes [offset, offset + size) of the window.
struct SendRun {
  int64_t offset = 0;
  std::span<const std::byte> source{};  // borrowed until the completion is polled
};

struct ReceiveRun {
  int64_t offset = 0;
  int64_t size_bytes = 0;
};

struct PostParams {
  std::string window{};  // the receiver's Window::descriptor()
  std::vector<SendRun> runs{};
  // Names the transfer on both sides; unique among the window's transfers.
  uint64_t transfer_id = 0;
  uint64_t tag = 0;  // returned in the sender's completion
  absl::Time deadline = absl::InfiniteFuture();
};

struct ExpectParams {
  const Window* window = nullptr;
  std::vector<ReceiveRun> runs{};
  uint64_t transfer_id = 0;
  uint64_t tag = 0;  // returned in the receiver's completion
  Checksum checksum = Checksum::kXxh3;
};

// Thread-safe. No method blocks except Connect (handshake path) and Poll (up to its deadline).
class Transport {
 public:
  virtual ~Transport() = default;

  virtual std::string_view name() const = 0;
  // Blob by which a peer connects to this worker; empty when it can't receive.
  virtual std::string connection_data() const = 0;
  // Makes `extents`, which are reached by `memory`, writable by peers that hold the descriptor.
  // Both must outlive the window.
  virtual absl::StatusOr<std::unique_ptr<Window>> Register(
      std::vector<std::span<std::byte>> extents, kernels::LandingMemory& memory) = 0;
  virtual absl::StatusOr<std::shared_ptr<Connection>> Connect(std::string_view connection_data) = 0;
  // Queues a transfer; its completion comes from Poll. kResourceExhausted when the queue is full,
  // kUnavailable when the connection is gone.
  virtual absl::Status Post(const std::shared_ptr<Connection>& connection, PostParams params) = 0;
  // Gives up an own post: its completion follows soon, kCancelled unless it was complete already.
  // An unknown tag is ignored. The source may be reused only after the completion.
  virtual void CancelPost(uint64_t tag) = 0;
  // Announces a transfer to the receiving side; exactly one kReceived completion follows, with OK
  // when all its bytes are in place, kCancelled when this side gave it up. Bytes that arrive before
  // their announcement wait for it; bytes outside the announced runs, or sent twice, are refused
  // and never written.
  virtual absl::Status Expect(const ExpectParams& params) = 0;
  // Waits until there is a completion or `deadline` passes; called by one progress thread.
  virtual std::vector<Completion> Poll(absl::Time deadline) = 0;
  // Ends every wait: Poll returns at once from now on, open transfers complete with kCancelled.
  virtual void Release() = 0;
};

}  // namespace baton::transport
