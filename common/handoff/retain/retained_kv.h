// The encoded KV of one prompt, kept in host memory after the engine's pages have gone.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "common/engine/kv_sink.h"
#include "common/engine/request.h"

namespace baton::handoff {

// Bytes that count against a total while they are held. Not thread-safe; the total is.
class MemoryCharge {
 public:
  explicit MemoryCharge(std::shared_ptr<std::atomic<int64_t>> total) : total_(std::move(total)) {}
  ~MemoryCharge() { Clear(); }
  MemoryCharge(const MemoryCharge&) = delete;
  MemoryCharge& operator=(const MemoryCharge&) = delete;

  void Add(int64_t bytes) {
    bytes_ += bytes;
    *total_ += bytes;
  }
  void Clear() { *total_ -= std::exchange(bytes_, 0); }

 private:
  const std::shared_ptr<std::atomic<int64_t>> total_;
  int64_t bytes_ = 0;
};

// What a KvSink was given, in order. Written by one thread until it is complete, immutable then.
struct RetainedKv {
  // One LayersReady call; `bytes` are its pages one after the other.
  struct Group {
    int32_t layer_begin = 0;
    int32_t layer_end = 0;
    int32_t page_begin = 0;
    int32_t page_count = 0;
    std::vector<std::byte> bytes;
  };

  explicit RetainedKv(std::shared_ptr<std::atomic<int64_t>> total) : charge(std::move(total)) {}

  std::string request_id;
  // Everything that KV and first tokens depend on, as the caller encodes it: other bytes, other KV.
  std::string identity;
  std::vector<Group> groups;
  engine::CommitInfo commit;
  MemoryCharge charge;
};

// A copy of the pages of a LayersReady call; an error when a device's can't be read.
absl::StatusOr<RetainedKv::Group> CopyPages(const engine::ReadyKv& ready);

// Gives `sink` everything again, as the engine did. `done` is called like that of KvSink::Commit;
// the KV and the sink are held until then.
void ShipRetained(std::shared_ptr<const RetainedKv> kv,
                  std::shared_ptr<engine::KvSink> sink,
                  std::function<void(absl::Status status, int64_t wire_bytes)> done);

}  // namespace baton::handoff
