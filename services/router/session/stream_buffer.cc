#include "services/router/session/stream_buffer.h"

#include <utility>

namespace baton::router {
namespace {

// A delta stops growing here: far below the 4 MiB that a gRPC client receives by default.
constexpr size_t kMaxDeltaBytes = size_t{64} << 10;
// Memory of a message and of a token beyond its payload, roughly.
constexpr size_t kMessageBytes = 128;
constexpr size_t kLogprobBytes = 16;

size_t DeltaBytes(const inference::v1::Delta& delta) {
  size_t bytes =
      delta.text().size() + sizeof(uint32_t) * static_cast<size_t>(delta.token_ids_size());
  for (const inference::v1::TokenLogprob& logprob : delta.logprobs()) {
    bytes += kLogprobBytes * (1 + static_cast<size_t>(logprob.top_size()));
  }
  return bytes;
}

void MergeDelta(inference::v1::Delta&& source, inference::v1::Delta* target) {
  target->mutable_token_ids()->MergeFrom(source.token_ids());
  target->mutable_text()->append(source.text());
  for (inference::v1::TokenLogprob& logprob : *source.mutable_logprobs()) {
    target->mutable_logprobs()->Add(std::move(logprob));
  }
}

}  // namespace

StreamBuffer::Entry& StreamBuffer::Append(size_t bytes) {
  Entry& entry = messages_.emplace_back();
  entry.message.set_request_id(request_id_);
  entry.bytes = bytes + kMessageBytes;
  bytes_ += entry.bytes;
  return entry;
}

void StreamBuffer::AddStarted(inference::v1::Started started) {
  *Append(0).message.mutable_started() = std::move(started);
}

void StreamBuffer::AddDelta(inference::v1::Delta delta) {
  if (delta.token_ids().empty() && delta.text().empty()) {
    return;
  }
  const size_t bytes = DeltaBytes(delta);
  const uint32_t index = delta.index();
  const auto open = open_deltas_.find(index);
  if (open != open_deltas_.end() && open->second >= first_number_) {
    Entry& entry = messages_[open->second - first_number_];
    if (entry.bytes + bytes <= kMaxDeltaBytes) {
      MergeDelta(std::move(delta), entry.message.mutable_delta());
      entry.bytes += bytes;
      bytes_ += bytes;
      return;
    }
  }
  open_deltas_[index] = first_number_ + messages_.size();
  *Append(bytes).message.mutable_delta() = std::move(delta);
}

void StreamBuffer::AddFinished(inference::v1::Finished finished) {
  open_deltas_.erase(finished.index());
  *Append(finished.stop().size()).message.mutable_finished() = std::move(finished);
}

void StreamBuffer::AddUsage(inference::v1::Usage usage) {
  *Append(0).message.mutable_usage() = std::move(usage);
}

bool StreamBuffer::Pop(inference::v1::GenerateStreamResponse* message) {
  if (messages_.empty()) {
    return false;
  }
  *message = std::move(messages_.front().message);
  bytes_ -= messages_.front().bytes;
  messages_.pop_front();
  ++first_number_;
  return true;
}

void StreamBuffer::Clear() {
  first_number_ += messages_.size();
  messages_.clear();
  bytes_ = 0;
}

}  // namespace baton::router
