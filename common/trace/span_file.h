// Spans on their way into a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

#include "common/trace/otlp_json.h"
#include "common/trace/span.h"

namespace baton::trace {

struct SpanFileOptions {
  std::string path;
  // A file that would grow beyond this becomes PATH.1, in place of the one before, so that the two
  // together take at most twice as much.
  int64_t max_bytes = int64_t{64} << 20;
  // Spans that may wait for the disk; further ones are dropped and counted.
  size_t max_waiting = 8192;
  // Spans of requests that come without a trace context: this share of them begins a trace.
  double new_trace_share = 1.0;
  Resource resource = {};
  // Told how many spans were lost just now, by whoever added them or by the writing thread; must
  // not block.
  std::function<void(size_t)> on_dropped = [](size_t) {};
};

// Appends spans to a file in the form of OTLP's file exporter
// (https://opentelemetry.io/docs/specs/otel/protocol/file-exporter/), from a thread of its own. A
// disk that fails or is slow costs spans, never time of whoever made them. Thread-safe.
class SpanFile {
 public:
  // Opens the file for appending, readable for its owner and group. kUnavailable says why not.
  static absl::StatusOr<std::unique_ptr<SpanFile>> Open(SpanFileOptions options);
  // Writes what waits.
  ~SpanFile();
  SpanFile(const SpanFile&) = delete;
  SpanFile& operator=(const SpanFile&) = delete;

  double new_trace_share() const { return options_.new_trace_share; }

  // Takes the spans of one call, all or none. Never blocks on the disk.
  void Add(std::vector<Span> spans);
  // Spans lost since the start, because too many waited or the disk refused them.
  uint64_t dropped() const;

 private:
  SpanFile(SpanFileOptions options, std::ofstream file, int64_t bytes);

  void Work();
  // Queues the spans for the disk; false when too many wait.
  bool Enqueue(std::vector<Span>& spans);
  // Writes one line; false when the disk refuses it.
  bool Write(const std::vector<Span>& spans);
  // Makes the file the one before; false when it can't.
  bool Rotate();
  void CountDropped(size_t spans);

  const SpanFileOptions options_;
  // Of the writing thread.
  std::ofstream file_;
  int64_t bytes_;

  mutable absl::Mutex mutex_;
  std::vector<Span> waiting_ ABSL_GUARDED_BY(mutex_);
  bool stop_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::thread thread_;  // last: it uses all the others
};

}  // namespace baton::trace
