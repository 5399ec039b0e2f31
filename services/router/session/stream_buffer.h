// Messages that wait for a client to read them, merged while they wait.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <unordered_map>

#include "proto/baton/inference/v1/inference.pb.h"

namespace baton::router {

// Output of one request in order. A delta joins the waiting delta of its sequence, so a slow client
// gets few large messages instead of many small ones (performance.md section 6). The buffer itself
// has no limit: its owner stops reading from decode while bytes() is above its own. Not
// thread-safe.
class StreamBuffer {
 public:
  // Every message carries `request_id`.
  explicit StreamBuffer(std::string request_id) : request_id_(std::move(request_id)) {}

  void AddStarted(inference::v1::Started started);
  // An empty delta is dropped.
  void AddDelta(inference::v1::Delta delta);
  void AddFinished(inference::v1::Finished finished);
  void AddUsage(inference::v1::Usage usage);

  // Takes the next message; false when nothing waits.
  bool Pop(inference::v1::GenerateStreamResponse* message);
  // Drops everything that waits.
  void Clear();

  bool empty() const { return messages_.empty(); }
  // Estimated memory of what waits.
  size_t bytes() const { return bytes_; }

 private:
  struct Entry {
    inference::v1::GenerateStreamResponse message;
    size_t bytes = 0;
  };

  Entry& Append(size_t bytes);

  const std::string request_id_;
  std::deque<Entry> messages_;
  // Number of the first waiting message since the start of the stream.
  uint64_t first_number_ = 0;
  // Sequence index -> number of its waiting delta that may still grow.
  std::unordered_map<uint32_t, uint64_t> open_deltas_;
  size_t bytes_ = 0;
};

}  // namespace baton::router
