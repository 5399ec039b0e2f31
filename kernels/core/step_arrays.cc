#include "kernels/core/step_arrays.h"

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "kernels/core/buffer.h"
#include "kernels/core/memory.h"
#include "kernels/core/round_up.h"

namespace baton::kernels {
namespace {

constexpr size_t kLeastChunk = 64 << 10;

constexpr size_t Aligned(size_t bytes) { return RoundUp(bytes, Buffer::kAlignment); }

}  // namespace

// A step that needed several chunks gets one for all of it the next time.
void StepArrays::Clear() {
  size_t used = 0;
  for (Chunk& chunk : chunks_) {
    used += chunk.used;
    chunk.used = 0;
    chunk.uploaded = 0;
  }
  status_ = absl::OkStatus();
  if (chunks_.size() > 1) {
    chunks_.clear();
    ChunkFor(2 * used);
    status_ = absl::OkStatus();
  }
}

StepArrays::Chunk* StepArrays::ChunkFor(size_t bytes) {
  if (!chunks_.empty() && chunks_.back().staged.size() - chunks_.back().used >= bytes) {
    return &chunks_.back();
  }
  const size_t size = std::max(kLeastChunk, Aligned(bytes));
  absl::StatusOr<Memory> memory = memory_.Allocate(size);
  if (!memory.ok()) {
    status_.Update(memory.status());
    return nullptr;
  }
  return &chunks_.emplace_back(Chunk{.staged = Buffer(size), .memory = *std::move(memory)});
}

std::byte* StepArrays::AddBytes(const void* values, size_t bytes) {
  Chunk* chunk = ChunkFor(bytes);
  if (chunk == nullptr) {
    return nullptr;
  }
  std::memcpy(chunk->staged.data() + chunk->used, values, bytes);
  std::byte* address = chunk->memory.data() + chunk->used;
  chunk->used = std::min(Aligned(chunk->used + bytes), chunk->staged.size());
  return address;
}

absl::Status StepArrays::Upload() {
  for (Chunk& chunk : chunks_) {
    if (chunk.used > chunk.uploaded) {
      status_.Update(memory_.Upload(chunk.memory.data() + chunk.uploaded,
                                    chunk.staged.data() + chunk.uploaded,
                                    chunk.used - chunk.uploaded));
      chunk.uploaded = chunk.used;
    }
  }
  return status_;
}

}  // namespace baton::kernels
