#include "common/trace/span_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <ios>
#include <iterator>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "spdlog/spdlog.h"

#include "common/trace/otlp_json.h"
#include "common/trace/span.h"

namespace baton::trace {
namespace {

// How long spans wait for more to share their line.
constexpr absl::Duration kBatchTime = absl::Milliseconds(200);
constexpr size_t kBatchSpans = 512;

// Owner and group read it: spans say who asked what when.
absl::Status Create(const std::string& path) {
  const int file = open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
  if (file < 0) {
    return absl::UnavailableError(
        absl::StrCat("flag --trace_file: can't write ", path, ": ", std::strerror(errno)));
  }
  close(file);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<SpanFile>> SpanFile::Open(SpanFileOptions options) {
  if (absl::Status created = Create(options.path); !created.ok()) {
    return created;
  }
  std::ofstream file(options.path, std::ios::app | std::ios::ate);
  const auto bytes = static_cast<int64_t>(file.tellp());
  return std::unique_ptr<SpanFile>(new SpanFile(std::move(options), std::move(file), bytes));
}

SpanFile::SpanFile(SpanFileOptions options, std::ofstream file, int64_t bytes)
    : options_(std::move(options)),
      file_(std::move(file)),
      bytes_(bytes),
      thread_([this] { Work(); }) {}

SpanFile::~SpanFile() {
  {
    absl::MutexLock lock(&mutex_);
    stop_ = true;
  }
  thread_.join();
  if (const uint64_t lost = dropped(); lost > 0) {
    spdlog::warn("trace_file path={} dropped_spans={}", options_.path, lost);
  }
}

void SpanFile::Add(std::vector<Span> spans) {
  if (!Enqueue(spans)) {
    CountDropped(spans.size());
  }
}

bool SpanFile::Enqueue(std::vector<Span>& spans) {
  absl::MutexLock lock(&mutex_);
  if (waiting_.size() + spans.size() > options_.max_waiting) {
    return false;
  }
  std::ranges::move(spans, std::back_inserter(waiting_));
  return true;
}

uint64_t SpanFile::dropped() const {
  absl::MutexLock lock(&mutex_);
  return dropped_;
}

void SpanFile::CountDropped(size_t spans) {
  {
    absl::MutexLock lock(&mutex_);
    dropped_ += spans;
  }
  options_.on_dropped(spans);
}

void SpanFile::Work() {
  bool stop = false;
  bool warned = false;
  while (!stop) {
    std::vector<Span> spans;
    {
      absl::MutexLock lock(&mutex_);
      const auto enough = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stop_ || waiting_.size() >= kBatchSpans;
      };
      mutex_.AwaitWithTimeout(absl::Condition(&enough), kBatchTime);
      stop = stop_;
      spans.swap(waiting_);
    }
    if (!spans.empty() && !Write(spans)) {
      CountDropped(spans.size());
    }
    if (!warned && dropped() > 0) {
      spdlog::warn("trace_file path={}: the disk is too slow or refuses; spans are dropped",
                   options_.path);
      warned = true;
    }
  }
}

bool SpanFile::Rotate() {
  file_.close();
  if (std::rename(options_.path.c_str(), absl::StrCat(options_.path, ".1").c_str()) != 0) {
    return false;
  }
  bytes_ = 0;
  return true;
}

bool SpanFile::Write(const std::vector<Span>& spans) {
  const std::string line = absl::StrCat(ToOtlpJson(options_.resource, spans), "\n");
  const auto size = static_cast<int64_t>(line.size());
  if (bytes_ > 0 && bytes_ + size > options_.max_bytes && !Rotate()) {
    return false;
  }
  file_.clear();
  if (!file_.is_open() && Create(options_.path).ok()) {
    file_.open(options_.path, std::ios::app);
  }
  file_ << line << std::flush;
  if (!file_.good()) {
    return false;
  }
  bytes_ += size;
  return true;
}

}  // namespace baton::trace
