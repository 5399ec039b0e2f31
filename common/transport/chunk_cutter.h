// Cuts the runs of a post into messages of bounded size.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "common/transport/transport.h"

namespace baton::transport {

// Gives the bytes of `runs` in order as chunks that are contiguous in the window; neighbouring runs
// (small pages) share a chunk. Not thread-safe; borrows the runs' memory.
class ChunkCutter {
 public:
  ChunkCutter(std::vector<SendRun> runs, size_t chunk_bytes)
      : runs_(std::move(runs)), chunk_bytes_(chunk_bytes) {
    for (const SendRun& run : runs_) {
      total_bytes_ += static_cast<int64_t>(run.source.size());
    }
    SkipEmptyRuns();
  }

  int64_t total_bytes() const { return total_bytes_; }
  bool done() const { return run_index_ == runs_.size(); }

  // Appends the next chunk's bytes to `out` (anything with append(const char*, size_t)) and returns
  // the chunk's offset in the window. Must not be called when done().
  template <typename Out>
  int64_t Next(Out& out) {
    const int64_t chunk_offset = runs_[run_index_].offset + static_cast<int64_t>(position_);
    int64_t next_offset = chunk_offset;
    size_t room = chunk_bytes_;
    while (!done() && room > 0 &&
           runs_[run_index_].offset + static_cast<int64_t>(position_) == next_offset) {
      const std::span<const std::byte> rest = runs_[run_index_].source.subspan(position_);
      const size_t size = std::min(rest.size(), room);
      out.append(reinterpret_cast<const char*>(rest.data()), size);
      position_ += size;
      room -= size;
      next_offset += static_cast<int64_t>(size);
      if (position_ == runs_[run_index_].source.size()) {
        ++run_index_;
        position_ = 0;
        SkipEmptyRuns();
      }
    }
    return chunk_offset;
  }

 private:
  void SkipEmptyRuns() {
    while (!done() && runs_[run_index_].source.empty()) {
      ++run_index_;
    }
  }

  std::vector<SendRun> runs_;
  size_t chunk_bytes_;
  int64_t total_bytes_ = 0;
  size_t run_index_ = 0;
  size_t position_ = 0;  // within the run
};

}  // namespace baton::transport
